/*
 * Receives. A receive names a tag and no rank (section 3). Each tag that is in use has a
 * record: the receive that was posted, or the messages that came before it, in their order. So
 * a tag has a receive that waits or messages that do, never both.
 *
 *      POSTED --- a short message: copied ---> DONE
 *         \------ an ASK: WANTS_GO --- GO sent ---> MOVING --- the last packet's immediate data ---> DONE
 *
 *      tag -> posted          the one receive, until it has been waited for
 *             first .. last   arrivals in order: SHORT (in its slot, or in the tag's own queue) and ASK
 *             held            what bip_getmsg gave out
 *             own_free        free places of the tag's own queue (bip_taginit)
 *
 * Where a message waits for its receive: a short one in its slot of the queue, which its sender pays
 * for with a credit until the program takes it, or copied into the queue that bip_taginit gave its
 * tag; of a long one only the question is here. So memory for messages that came too early is
 * bounded by n_slots for each rank, and whoever sends more waits.
 *
 * Of a rank that dies the messages that are here can still be received; a question of his
 * cannot be answered any more.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/plural.h"
#include "bip/internal.h"

/* ---------------------------------------------------------------- tags */

/* The upper 8 bits of a multiplicative hash: BUCKETS is 256. */
static bip_tag **bucket_of(bip_job *job, int tag)
{
    return &job->buckets[((uint32_t)tag * 2654435761u) >> 24];
}

/* Its record, or NULL: nothing is known of this tag. */
static bip_tag *find_tag(bip_job *job, int tag)
{
    bip_tag *t = *bucket_of(job, tag);
    while (t && t->tag != tag)
        t = t->next;
    return t;
}

/* Its record, made if there is none; NULL: no memory. */
static bip_tag *make_tag(bip_job *job, int tag)
{
    bip_tag *t = find_tag(job, tag), **bucket = bucket_of(job, tag);
    if (t)
        return t;
    if ((t = job->free_tags) != NULL)
        job->free_tags = t->next;
    else if ((t = malloc(sizeof *t)) == NULL)
        return NULL;
    *t = (bip_tag){.next = *bucket, .tag = tag};
    return *bucket = t;
}

/* Records of tags that nothing is known of any more are used again: programs that count their tags up do not fill the
 * memory. */
static void drop_tag(bip_job *job, bip_tag *t)
{
    bip_tag **p = bucket_of(job, t->tag);
    /* Something is known of it, or it has a queue that is to stay. */
    if (t->posted || t->first || t->held || t->n_own)
        return;
    while (*p != t)
        p = &(*p)->next;
    *p = t->next;
    t->next = job->free_tags;
    job->free_tags = t;
}

void bip_tags_fini(bip_job *job)
{
    /* One more round than there are buckets: the free ones. */
    for (int i = 0; i <= BUCKETS; i++)
        for (bip_tag *t = i < BUCKETS ? job->buckets[i] : job->free_tags, *next; t; t = next) {
            next = t->next;
            for (uint32_t k = 0; k < t->n_own_memory; k++)
                free(t->own_memory[k]);
            free(t->own_memory);
            free(t);
        }
    for (int i = 0; i < job->n_recvs; i++)
        free(job->recvs[i]);
    free(job->recvs);
}

/* A second call for the same tag adds places of the length that the first one chose. A place is an arrival
 * and its data behind it, in one piece of memory for all n. */
int bip_taginit_bytes(bip_job *job, int tag, int n, size_t len)
{
    size_t each = (sizeof(bip_arrival) + len + 15) & ~(size_t)15;
    if (n < 1 || n > 65536 || len > 65536)
        return bip_fail(job, BIP_ERR_ARGUMENT, "a queue of %d message%s of %zu byte%s: 1 to 65536 of up to 65536 bytes",
                        n, vk_s(n), len, vk_s(len));
    bip_tag *t = make_tag(job, tag);
    if (t == NULL)
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory");
    if (t->own_memory && len > t->own_len)
        return bip_fail(job, BIP_ERR_ARGUMENT, "tag %d has a queue of messages of %zu byte%s already", tag, t->own_len,
                        vk_s(t->own_len));
    len = t->own_memory ? t->own_len : len;
    each = (sizeof(bip_arrival) + len + 15) & ~(size_t)15;
    char *memory = malloc((size_t)n * each);
    char **all = memory ? realloc(t->own_memory, (t->n_own_memory + 1) * sizeof *all) : NULL;
    if (all == NULL) {
        free(memory);
        drop_tag(job, t);
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory for a queue of %d message%s of %zu byte%s", n, vk_s(n), len,
                        vk_s(len));
    }
    all[t->n_own_memory++] = memory;
    t->own_memory = all;
    t->own_len = len;
    t->n_own += (uint32_t)n;
    job->memory += (size_t)n * each;
    for (int i = 0; i < n; i++) {
        bip_arrival *a = (bip_arrival *)(void *)(memory + (size_t)i * each);
        *a = (bip_arrival){.next = t->own_free, .data = (char *)(a + 1)};
        t->own_free = a;
    }
    return 0;
}

/* ---------------------------------------------------------------- matching */

/* The message has been taken: its slot is posted again (and a credit owed), or its place in the tag's own queue is
 * free. */
static void release(bip_tag *t, bip_arrival *a)
{
    if (a->slot) {
        bip_free_slot(a->slot);
        return;
    }
    a->next = t->own_free;
    t->own_free = a;
}

static void end_recv(bip_job *job, bip_recv *r);

/* May call the layer, which may post the next receive under the same tag at once; so a noted receive gives tag and
 * place back first. */
void bip_recv_end(bip_job *job, bip_recv *r, int code)
{
    bip_region_put(r->region);
    r->region = NULL;
    r->code = code;
    r->state = RECV_DONE;
    if (code == 0)
        BIP_COUNT(job, bytes_received, r->len);
    else
        bip_fail(job, code, "a message of %zu byte%s with tag %d of rank %d for a buffer of %zu: %s", r->len,
                 vk_s(r->len), r->tag->tag, r->peer->rank, r->max_len, bip_code_text(code));
    if (r->noted) {
        end_recv(job, r);
        job->layer.received(job->layer.context, r->cookie, code);
    }
}

/* Into the receive's buffer; the place is free again after the copy, never before. */
static void take_short(bip_job *job, bip_tag *t, bip_arrival *a, void *buf)
{
    if (a->head.len)
        memcpy(buf, a->data, a->head.len);
    BIP_COUNT(job, short_received, 1);
    release(t, a);
}

/* Answers an ASK with a code instead of a GO; later, if there is no buffer now (bip_progress does it). */
static void refuse(bip_peer *peer, int code)
{
    if (peer->lost)
        return;
    if (bip_control(peer, KIND_REFUSE, code)) {
        peer->asking = false;
        return;
    }
    peer->refusal = code;
    peer->port->job->words_due = true;
}

/* A receive has found its message. Four ends: too long (an error on both sides), short (copied,
 * done), a question of a rank that is lost (an error), a question (GO is due). In each the arrival's
 * slot is given back, for all that is needed of it is in r. */
static void match(bip_job *job, bip_recv *r, bip_arrival *a)
{
    bip_peer *peer = a->peer;
    r->peer = peer;
    r->len = a->head.len;
    if (r->len > r->max_len) {
        bool ask = a->head.kind == KIND_ASK;
        release(r->tag, a);
        bip_recv_end(job, r, BIP_ERR_TOO_LONG);
        if (ask)
            refuse(peer, BIP_ERR_TOO_LONG);
    } else if (a->head.kind == KIND_SHORT) {
        take_short(job, r->tag, a, r->buf);
        bip_recv_end(job, r, 0);
    } else if (peer->lost) {
        release(r->tag, a);
        bip_recv_end(job, r, peer->said_bye ? BIP_ERR_LEFT : BIP_ERR_PEER);
    } else {
        release(r->tag, a);
        r->state = RECV_WANTS_GO;
        r->next = job->wants_go;
        job->wants_go = r;
        bip_recv_step(job);
    }
}

/* Says GO to whom it can. */
void bip_recv_step(bip_job *job)
{
    /* Each as far as it can: who lacks a registration or a buffer stays in the list, and is asked
     * for again by progress. */
    for (bip_recv **p = &job->wants_go, *r; (r = *p) != NULL;) {
        bip_peer *peer = r->peer;
        bip_slot *slot = NULL;
        if (!peer->lost && r->region == NULL && (r->region = bip_region_get(peer->port, r->buf, r->len)) == NULL) {
            p = &r->next; /* too many buffers are in use, or too much memory */
            continue;
        }
        if (!peer->lost && (slot = bip_take_send(peer, 0)) == NULL) {
            p = &r->next;
            continue;
        }
        *p = r->next;
        if (peer->lost) {
            bip_recv_end(job, r, peer->said_bye ? BIP_ERR_LEFT : BIP_ERR_PEER);
            continue;
        }
        bip_go go = {.head = {.kind = KIND_GO, .len = r->len},
                     .address = (uint64_t)(uintptr_t)r->buf,
                     .handle = r->region->handle};
        memcpy(slot->buf, &go, sizeof go);
        r->state = RECV_MOVING;
        /* One at a time for each peer: it has asked, and asks no other before its data has come (`asking`). */
        peer->incoming = r;
        bip_post_head(peer, slot, sizeof go);
    }
}

/* All of a long message is in its buffer: the immediate data came behind the last packet, on the same VI. */
void bip_long_arrived(bip_peer *peer, uint32_t immediate)
{
    bip_job *job = peer->port->job;
    bip_recv *r = peer->incoming;
    if (r == NULL)
        return; /* written before we gave the receive up: only losing the peer does that */
    peer->incoming = NULL;
    peer->asking = false;
    /* BYE tells him the number (progress.c: good_bye). */
    peer->long_received++;
    uint32_t expected = job->options.checksum ? vk_crc32c(0, r->buf, r->len) : (uint32_t)r->len;
    BIP_COUNT(job, long_received, 1);
    bip_recv_end(job, r, immediate == expected ? 0 : BIP_ERR_DAMAGED);
}

/* A message or a question has come: to the receive that waits for it, or into its tag's queue, in the order of
 * arrival. */
void bip_arrived(bip_arrival *a)
{
    bip_job *job = a->peer->port->job;
    bip_tag *t = make_tag(job, a->head.tag);
    if (t == NULL) { /* it stays in its slot for good: the queue is one shorter, and the job fails when it is full */
        bip_fail(job, BIP_ERR_RESOURCE, "no memory");
        return;
    }
    if (t->posted && t->posted->state == RECV_POSTED) {
        match(job, t->posted, a);
        return;
    }
    BIP_COUNT(job, unexpected, 1);
    /* What BIP asked of its users ("a receive need to be posted before the send", section 3) is demanded. */
    if (job->options.strict && a->head.kind == KIND_ASK) {
        bip_peer *peer = a->peer;
        bip_free_slot(a->slot);
        refuse(peer, BIP_ERR_NOT_POSTED);
        drop_tag(job, t);
        return;
    }
    /* Into the tag's own queue if it fits: the shared place, and its sender's credit, are free at once. */
    if (t->own_free && a->head.kind == KIND_SHORT && a->head.len <= t->own_len) {
        bip_arrival *own = t->own_free;
        t->own_free = own->next;
        own->peer = a->peer;
        own->head = a->head;
        memcpy(own->data, a->data, a->head.len);
        bip_free_slot(a->slot);
        a = own;
    }
    a->next = NULL;
    if (t->first)
        t->last->next = a;
    else
        t->first = a;
    t->last = a;
}

/* The oldest of the tag. `last` is stale when none is left; first == NULL is what counts. */
static bip_arrival *take_first(bip_tag *t)
{
    bip_arrival *a = t->first;
    t->first = a->next;
    return a;
}

/* ---------------------------------------------------------------- the calls */

/* From the free ones, else a new one: the table doubles, records themselves never move. */
static bip_recv *new_recv(bip_job *job)
{
    bip_recv *r = job->free_recvs;
    if (r) {
        job->free_recvs = r->next;
        return r;
    }
    /* Ids have 16 bits for the index. */
    if (job->n_recvs == 65536)
        return NULL;
    if ((job->n_recvs & (job->n_recvs - 1)) == 0) { /* a power of two, or none yet: double */
        bip_recv **more = realloc(job->recvs, (job->n_recvs ? 2 * (size_t)job->n_recvs : 1) * sizeof *more);
        if (more == NULL)
            return NULL;
        job->recvs = more;
    }
    if ((r = calloc(1, sizeof *r)) == NULL)
        return NULL;
    r->index = job->n_recvs;
    return job->recvs[job->n_recvs++] = r;
}

/* Ids that were used up are not found, until 8192 later ones had their place. */
static bip_recv *find_recv(bip_job *job, int id)
{
    int index = id & 0xffff;
    if (id < 0 || index >= job->n_recvs)
        return NULL;
    bip_recv *r = job->recvs[index];
    return r->state != RECV_FREE && (int)r->generation == id >> 16 ? r : NULL;
}

/* The receive is nobody's any more, and its tag may be posted again. The next life of this
 * place has another generation. */
static void end_recv(bip_job *job, bip_recv *r)
{
    bip_tag *t = r->tag;
    t->posted = NULL;
    drop_tag(job, t);
    r->state = RECV_FREE;
    /* 13 bits, so that with 16 of the index an id is never negative. */
    r->generation = (r->generation + 1) & 0x1fff;
    r->next = job->free_recvs;
    job->free_recvs = r;
}

/* The id, or what is wrong. Matches at once if a message is here; of a noted one the layer may have heard before this
 * returns. */
static int begin(bip_job *job, int tag, void *buf, size_t max_len, bool noted, uint64_t cookie)
{
    if (buf == NULL && max_len)
        return bip_fail(job, BIP_ERR_ARGUMENT, "room for %zu byte%s without a buffer", max_len, vk_s(max_len));
    bip_tag *t = make_tag(job, tag);
    /* Or the message would have two takers. */
    if (t && t->posted)
        return bip_fail(job, BIP_ERR_BUSY, "a receive with tag %d is outstanding: wait for it first", tag);
    bip_recv *r = t ? new_recv(job) : NULL;
    if (r == NULL)
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory, or 65536 receives are outstanding");
    r->state = RECV_POSTED;
    r->tag = t;
    r->buf = buf;
    r->max_len = max_len;
    r->len = 0;
    r->code = 0;
    r->peer = NULL;
    r->noted = noted;
    r->cookie = cookie;
    t->posted = r;
    int id = (int)(r->generation << 16) | r->index;
    if (t->first)
        match(job, r, take_first(t));
    return id;
}

int bip_irecv_bytes(bip_job *job, int tag, void *buf, size_t max_len)
{
    /* What is here by now came before its receive: afterwards nobody could tell. */
    if (job->options.strict)
        bip_progress(job);
    return begin(job, tag, buf, max_len, false, 0);
}

int bip_irecv_noted(bip_job *job, int tag, void *buf, size_t max_len, uint64_t cookie)
{
    return begin(job, tag, buf, max_len, true, cookie);
}

/* Reports once: afterwards the id is nobody's. Makes progress if it has not ended yet. */
int bip_rtest_id(bip_job *job, int id, size_t *len, int *node)
{
    bip_recv *r = find_recv(job, id);
    if (r == NULL)
        return bip_fail(job, BIP_ERR_ARGUMENT, "there is no receive %d, or it has been waited for or taken back", id);
    if (r->state != RECV_DONE)
        bip_progress(job);
    if (r->state != RECV_DONE)
        return 0;
    int code = r->code;
    if (len)
        *len = r->len;
    if (node && r->peer)
        *node = r->peer->rank;
    end_recv(job, r);
    return code ? code : 1;
}

/* Can anything come any more? 0, or why not. A receive names no rank, so that one that died may be the one it
 * waits for: any death ends all waits, but not what is here already or on its way into a buffer. */
static int alone(bip_job *job)
{
    if (job->dead >= 0)
        return bip_fail(job, job->dead_code, "rank %d %s", job->dead,
                        job->dead_code == BIP_ERR_PEER ? "died" : "sent what was damaged on the way");
    if (job->options.n_ranks == 1)
        return bip_fail(job, BIP_ERR_LEFT, "there is one rank only: nobody can send");
    if (job->n_left == job->options.n_ranks - 1)
        return bip_fail(job, BIP_ERR_LEFT, "all other ranks have left: nothing can come any more");
    return 0;
}

int bip_rwait_id(bip_job *job, int id, size_t *len, int *node, int timeout_ms)
{
    bip_wait wait;
    int done = bip_rtest_id(job, id, len, node);
    if (done)
        return done;
    bip_wait_begin(job, &wait, timeout_ms);
    /* The record stays where it is, and the state of this receive cannot go back to FREE before rtest says so. */
    bip_recv *r = find_recv(job, id);
    while (r->state != RECV_DONE) {
        int code = bip_wait_step(job, &wait);
        if (code == 0 && r->state == RECV_POSTED)
            code = alone(job);
        if (code && r->state != RECV_DONE) {
            if (code != BIP_ERR_TIMEOUT && code != BIP_ERR_INTERRUPTED)
                bip_rcancel_id(job, id);
            return code;
        }
    }
    return bip_rtest_id(job, id, len, node);
}

/* Takes a receive back. Only while nothing comes in: the peer may be writing into the buffer otherwise. */
int bip_rcancel_id(bip_job *job, int id)
{
    bip_recv *r = find_recv(job, id);
    if (r == NULL)
        return bip_fail(job, BIP_ERR_ARGUMENT, "there is no receive %d, or it has been waited for or taken back", id);
    if (r->state == RECV_WANTS_GO || r->state == RECV_MOVING)
        return bip_fail(job, BIP_ERR_BUSY, "data of rank %d is on its way into the buffer", r->peer->rank);
    end_recv(job, r);
    return 0;
}

/* Takes a short message that is here, first in its tag's queue: 1 received, 0 none, or a long one is first, or
 * an error. Never waits. One too long for buf is an error and is gone: its place is needed. */
int bip_recv_short(bip_job *job, int tag, void *buf, size_t max_len, size_t *len, int *node)
{
    bip_tag *t = find_tag(job, tag);
    if (t == NULL || t->first == NULL) {
        bip_progress(job);
        t = find_tag(job, tag);
    }
    if (t && t->posted)
        return bip_fail(job, BIP_ERR_BUSY, "a receive with tag %d is outstanding: wait for it first", tag);
    if (t == NULL || t->first == NULL || t->first->head.kind != KIND_SHORT)
        return 0;
    bip_arrival *a = take_first(t);
    size_t n = a->head.len;
    *len = n;
    *node = a->peer->rank;
    if (n > max_len)
        release(t, a);
    else
        take_short(job, t, a, buf);
    drop_tag(job, t);
    if (n > max_len)
        return bip_fail(job, BIP_ERR_TOO_LONG, "a message of %zu byte%s with tag %d for a buffer of %zu", n, vk_s(n),
                        tag, max_len);
    BIP_COUNT(job, bytes_received, n);
    return 1;
}

/* The message where it lies, without a copy, until bip_freemsg. Its sender's credit is out as long. 1, 0 none
 * (timeout 0), or an error. The tag is looked up anew after each step, for records of tags come and go. */
int bip_getmsg(bip_job *job, int tag, const void **buf, size_t *len, int *node, int timeout_ms)
{
    bip_wait wait;
    bip_tag *t = find_tag(job, tag);
    bool waits = timeout_ms != 0;
    if (t && (t->posted || t->held))
        return bip_fail(job, BIP_ERR_BUSY, "a receive with tag %d is outstanding, or bip_tfreemsg is missing", tag);
    bip_progress(job);
    bip_wait_begin(job, &wait, timeout_ms);
    while ((t = find_tag(job, tag)) == NULL || t->first == NULL) {
        int code = waits ? bip_wait_step(job, &wait) : 0;
        if (code == 0 && waits)
            code = alone(job);
        if (code || !waits) {
            t = find_tag(job, tag);
            if (t && t->first)
                break;
            return code;
        }
    }
    if (t->first->head.kind != KIND_SHORT)
        return bip_fail(job, BIP_ERR_ARGUMENT, "the next message with tag %d is a long one, of %llu byte%s: receive it",
                        tag, (unsigned long long)t->first->head.len, vk_s(t->first->head.len));
    t->held = take_first(t);
    *buf = t->held->data;
    *len = t->held->head.len;
    *node = t->held->peer->rank;
    BIP_COUNT(job, short_received, 1);
    BIP_COUNT(job, bytes_received, *len);
    return 1;
}

int bip_freemsg(bip_job *job, int tag)
{
    bip_tag *t = find_tag(job, tag);
    if (t == NULL || t->held == NULL)
        return bip_fail(job, BIP_ERR_ARGUMENT, "no message with tag %d has been given out", tag);
    release(t, t->held);
    t->held = NULL;
    drop_tag(job, t);
    return 0;
}
