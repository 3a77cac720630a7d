/*
 * Matching of messages and receives, in MPI's order. A message matches the fitting receive that was posted first. A
 * receive matches the fitting message that arrived first. (MPI, point-to-point, "Order": messages do not overtake each
 * other. This file is all that the rule needs, because packets of one pair of ranks arrive in order.)
 *
 * A *lane* is a list of all entries with the same (context, source, tag), in order. Lanes are found by hashing. A
 * receive is in one lane, whose source or tag may be "any". The receive for a message is searched in up to four lanes:
 *
 *      message (c, 3, 7)  ->  (c, 3, 7)  (c, any, 7)  (c, 3, any)  (c, any, any)      the earliest of the four heads
 *
 * Only the kinds of lane that hold a receive are searched, so programs without wildcards pay for one look-up. An
 * unexpected message is put into its four lanes at once, so that any receive finds it at the head of the one lane that
 * it names. No list is ever scanned: matching among 100 000 entries costs the same time as among one. Empty lanes are
 * kept until the table would have to grow.
 *
 * The usual design is one list of posted receives that each message scans: fast for three entries, and slow for
 * programs with a thousand. The counters match_lookups and match_steps show the length of the searches here.
 *
 * Invariant: a receive in the posted queue and a message in the unexpected queue never match each other. Whichever
 * comes second searches for the other before it is queued. Called with the world's lock held.
 */
#include <stdlib.h>

#include "msg/engine.h"

/* A power of two. The table doubles as lanes are created. */
#define FIRST_BUCKETS 256

/* Rings with a sentinel: an entry can be removed without a pointer to its lane. So a message that was found in one
 * of its four rings leaves the other three at once. */
static inline void list_init(struct msg_link *list)
{
    list->prev = list->next = list;
}

static inline int list_empty(const struct msg_link *list)
{
    return list->next == list;
}

static inline void list_append(struct msg_link *list, struct msg_link *l)
{
    l->prev = list->prev;
    l->next = list;
    list->prev->next = l;
    list->prev = l;
}

static inline void list_remove(struct msg_link *l)
{
    l->prev->next = l->next;
    l->next->prev = l->prev;
    l->next = l->prev = NULL;
}

/* Returns 0, or -1 without memory. msg_lanes_fini also accepts lanes whose initialisation failed, or that are zero. */
int msg_lanes_init(struct msg_lanes *lanes)
{
    memset(lanes, 0, sizeof *lanes);
    lanes->buckets = calloc(FIRST_BUCKETS, sizeof *lanes->buckets);
    lanes->mask = FIRST_BUCKETS - 1;
    return lanes->buckets ? 0 : -1;
}

/* Frees a chain of lanes: those of one bucket, or the free ones. Entries in them are not freed. */
static void free_list(struct msg_lane *lane)
{
    while (lane) {
        struct msg_lane *next = lane->next;
        free(lane);
        lane = next;
    }
}

void msg_lanes_fini(struct msg_lanes *lanes)
{
    for (uint32_t i = 0; lanes->buckets && i <= lanes->mask; i++)
        free_list(lanes->buckets[i]);
    free_list(lanes->free);
    free(lanes->buckets);
    memset(lanes, 0, sizeof *lanes);
}

/* Multiplies and folds. Programs number tags and ranks densely, and all their bits must affect the low bits, which
 * select the bucket. The factors are arbitrary odd constants with bits spread over the word. */
static inline uint32_t hash(int context, int source, int tag)
{
    uint64_t h = ((uint64_t)(uint32_t)source << 32 | (uint32_t)tag) * 0x9E3779B97F4A7C15ull;
    h ^= (uint64_t)(uint32_t)context * 0xC2B2AE3D27D4EB4Full;
    return (uint32_t)((h ^ h >> 29) * 0xBF58476D1CE4E5B9ull >> 32);
}

static inline int is_lane(const struct msg_lane *lane, int context, int source, int tag)
{
    return lane->tag == tag && lane->source == source && lane->context == context;
}

/* Returns the lane, or NULL. A program that receives in a loop names the same lane each time, so the last lane is
 * compared before hashing. */
static inline struct msg_lane *find(msg_world *w, struct msg_lanes *lanes, int context, int source, int tag)
{
    struct msg_lane *lane = lanes->last;
    MSG_COUNT(w, match_lookups, 1);
    MSG_COUNT(w, match_steps, 1);
    if (lane && is_lane(lane, context, source, tag))
        return lane;
    /* At most one lane per bucket on average, because the table doubles before there are more (find_or_make). */
    for (lane = lanes->buckets[hash(context, source, tag) & lanes->mask]; lane; lane = lane->next) {
        MSG_COUNT(w, match_steps, 1);
        if (is_lane(lane, context, source, tag)) {
            lanes->last = lane;
            return lane;
        }
    }
    return NULL;
}

/* Frees empty lanes. If that does not make enough room, the table doubles. */
static void tidy(msg_world *w, struct msg_lanes *lanes)
{
    uint32_t alive = 0, size = lanes->mask + 1;
    /* The last lane may be one of the freed. */
    lanes->last = NULL;
    for (uint32_t i = 0; i <= lanes->mask; i++)
        for (struct msg_lane **p = &lanes->buckets[i], *lane; (lane = *p) != NULL;) {
            if (!list_empty(&lane->list)) {
                alive++;
                p = &lane->next;
                continue;
            }
            *p = lane->next;
            lane->next = lanes->free;
            lanes->free = lane;
        }
    lanes->n_lanes = alive;
    /* Half a table of new lanes can then be created before the next call, which pays for this pass over the table. */
    if (alive < size / 2)
        return;
    struct msg_lane **bigger = calloc(2 * (size_t)size, sizeof *bigger);
    if (bigger == NULL)
        return; /* the chains grow instead */
    MSG_COUNT(w, allocations, 1);
    for (uint32_t i = 0; i < size; i++)
        for (struct msg_lane *lane = lanes->buckets[i], *next; lane; lane = next) {
            struct msg_lane **to = &bigger[hash(lane->context, lane->source, lane->tag) & (2 * size - 1)];
            next = lane->next;
            lane->next = *to;
            *to = lane;
        }
    free(lanes->buckets);
    lanes->buckets = bigger;
    lanes->mask = 2 * size - 1;
}

/* Returns NULL without memory. May free empty lanes, so a pointer to another, empty lane is stale afterwards. */
static struct msg_lane *find_or_make(msg_world *w, struct msg_lanes *lanes, int context, int source, int tag)
{
    struct msg_lane *lane = find(w, lanes, context, source, tag);
    if (lane)
        return lane;
    if (lanes->n_lanes > lanes->mask)
        tidy(w, lanes);
    lane = lanes->free;
    if (lane)
        lanes->free = lane->next;
    else {
        lane = malloc(sizeof *lane);
        MSG_COUNT(w, allocations, 1);
        if (lane == NULL)
            return NULL;
    }
    /* Computed only now: tidy may have changed the table. */
    struct msg_lane **bucket = &lanes->buckets[hash(context, source, tag) & lanes->mask];
    *lane = (struct msg_lane){.next = *bucket, .context = context, .source = source, .tag = tag};
    list_init(&lane->list);
    *bucket = lanes->last = lane;
    lanes->n_lanes++;
    return lane;
}

/* ---------------------------------------------------------------- posted receives */

/* Kind of lane that holds a receive: one bit for each wildcard. The same number is the index into a message's
 * `views`. */
static inline int view_of(int source, int tag)
{
    return (source == MSG_ANY_SOURCE ? MSG_VIEW_ANY_SOURCE : 0) | (tag == MSG_ANY_TAG ? MSG_VIEW_ANY_TAG : 0);
}

/* The link is the first field of a request. */
static inline msg_request *first_posted(msg_world *w, int context, int source, int tag)
{
    struct msg_lane *lane = find(w, &w->posted, context, source, tag);
    return lane && !list_empty(&lane->list) ? (msg_request *)(void *)lane->list.next : NULL;
}

/* Returns MSG_SUCCESS or MSG_ERR_NO_MEMORY. `sequence` orders receives of different lanes: it finds the earliest of
 * four heads. The caller has searched the unexpected queue before, with the lock held since. */
int msg_post(msg_world *w, msg_request *r)
{
    struct msg_lane *lane = find_or_make(w, &w->posted, r->context, r->peer, r->tag);
    if (lane == NULL)
        return MSG_ERR_NO_MEMORY;
    r->sequence = w->sequence++;
    r->flags |= MSG_ON_POSTED;
    list_append(&lane->list, &r->link);
    w->n_posted[view_of(r->peer, r->tag)]++;
    MSG_COUNT(w, posted_now, 1);
    return MSG_SUCCESS;
}

/* Takes the receive out of its lane. The lane stays, even if it is empty: the next receive of a loop uses it again. */
void msg_unpost(msg_world *w, msg_request *r)
{
    list_remove(&r->link);
    r->flags &= (uint8_t)~MSG_ON_POSTED;
    w->n_posted[view_of(r->peer, r->tag)]--;
    MSG_COUNT(w, posted_now, -1);
}

/* At most four look-ups. A view that holds no receive costs only a test of its count. */
msg_request *msg_match_posted(msg_world *w, int context, int source, int tag)
{
    msg_request *best = NULL;
    for (int view = 0; view < MSG_VIEWS; view++) {
        /* A receive is in one lane only, and lanes are in order. So the least sequence of the four heads belongs to
         * the oldest receive. */
        if (w->n_posted[view] == 0)
            continue;
        msg_request *r = first_posted(w, context, view & MSG_VIEW_ANY_SOURCE ? MSG_ANY_SOURCE : source,
                                      view & MSG_VIEW_ANY_TAG ? MSG_ANY_TAG : tag);
        if (r && (best == NULL || r->sequence < best->sequence))
            best = r;
    }
    if (best)
        msg_unpost(w, best);
    return best;
}

/* ---------------------------------------------------------------- unexpected messages */

/* Adds the message to all four lanes or to none. Returns MSG_SUCCESS or MSG_ERR_NO_MEMORY. */
int msg_add_unexpected(msg_world *w, msg_message *m)
{
    struct msg_lane *lanes[MSG_VIEWS];
    for (int view = 0; view < MSG_VIEWS; view++) {
        lanes[view] = find_or_make(w, &w->unexpected, m->packet.head.context,
                                   view & MSG_VIEW_ANY_SOURCE ? MSG_ANY_SOURCE : m->source,
                                   view & MSG_VIEW_ANY_TAG ? MSG_ANY_TAG : m->packet.head.tag);
        if (lanes[view] == NULL) {
            while (view-- > 0)
                list_remove(&m->views[view]);
            return MSG_ERR_NO_MEMORY;
        }
        /* Appended at once: creating the next lane may free empty lanes. */
        list_append(&lanes[view]->list, &m->views[view]);
    }
    w->n_unexpected++;
    MSG_COUNT(w, unexpected_now, 1);
    return MSG_SUCCESS;
}

/* The envelope belongs to the caller then, until msg_message_put. */
void msg_take_unexpected(msg_world *w, msg_message *m)
{
    /* The message heads the ring in which it was found, and lies anywhere in the other three. */
    for (int view = 0; view < MSG_VIEWS; view++)
        list_remove(&m->views[view]);
    m->taken = 1;
    w->n_unexpected--;
    MSG_COUNT(w, unexpected_now, -1);
}

/* Returns the envelope that contains this link of a view. */
static inline msg_message *message_of(struct msg_link *l, int view)
{
    return (msg_message *)(void *)((char *)(l - view) - offsetof(msg_message, views));
}

msg_message *msg_find_unexpected(msg_world *w, int context, int source, int tag)
{
    if (vk_likely(w->n_unexpected == 0))
        return NULL;
    /* One look-up: the lane holds exactly the messages that such a receive matches, in the order of arrival.
     * Wildcards are ordinary keys, because they are negative and ranks and tags are not. */
    struct msg_lane *lane = find(w, &w->unexpected, context, source, tag);
    if (lane == NULL || list_empty(&lane->list))
        return NULL;
    return message_of(lane->list.next, view_of(source, tag));
}

/* The lane of both wildcards holds all messages of a context in the order of arrival. This search walks through it, so
 * it is for callers that select by some bits of the tag, and expect few messages. */
msg_message *msg_search_unexpected(msg_world *w, int context, int mask, int tag)
{
    struct msg_lane *lane = w->n_unexpected ? find(w, &w->unexpected, context, MSG_ANY_SOURCE, MSG_ANY_TAG) : NULL;
    for (struct msg_link *l = lane ? lane->list.next : NULL; lane && l != &lane->list; l = l->next) {
        msg_message *m = message_of(l, MSG_VIEW_ANY);
        if ((m->packet.head.tag & mask) == (tag & mask))
            return m;
    }
    return NULL;
}

msg_message *msg_search_other(msg_world *w, int context, int mask, int tag)
{
    struct msg_lane *lane = w->n_unexpected ? find(w, &w->unexpected, context, MSG_ANY_SOURCE, MSG_ANY_TAG) : NULL;
    for (struct msg_link *l = lane ? lane->list.next : NULL; lane && l != &lane->list; l = l->next) {
        msg_message *m = message_of(l, MSG_VIEW_ANY);
        if ((m->packet.head.tag & mask) == (tag & mask) && m->packet.head.tag != tag)
            return m;
    }
    return NULL;
}
