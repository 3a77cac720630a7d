/*
 * Ranks that connect when they meet, and what they learn of ranks that they have never met.
 *
 * In a *sparse* world each rank connects at the start only to its neighbours, whose distance on the circle of ranks is
 * a power of two. So a rank of n has about 2 log2 n connections, and any other rank is at most log2 n steps away:
 *
 *      rank 0 of 16:   1 2 4 8 12 14 15          rank 5 of 16:   6 7 9 13 1 3 4
 *
 * All other pairs connect when one of them has a packet for the other, or waits for a message of it (msg_need). A
 * receive from MSG_ANY_SOURCE needs no connection. Small jobs, in which all are neighbours, are not sparse.
 *
 * Failure. A rank notices the death of those that it is connected to. It spreads the news (FAILED) to all of these, and
 * they to theirs. A rank that is itself connected to the rank in question ignores news of it: its own connection is the
 * better evidence. News spread over all connections, so they pass by other dead ranks.
 *
 * Departure. A rank that closes its world sends BYE to all ranks that it is connected to, and waits for theirs. It also
 * stays until all others have begun to close, because a rank that it has not met may still need it. The rounds of a
 * dissemination barrier, which go along neighbours, show when that is so:
 *
 *      round k:  to rank + 2^k, after round k - 1 has come from rank - 2^(k-1)           log2 n rounds
 *
 * A rank begins round 0 once none of its connections is half made, so its partner in each is still there. The rounds
 * fail if a rank dies or leaves early. From the first news of that on (`spreading`), departures are spread as failures
 * are (LEFT). A rank then stays until it has news of each other rank, or has lost all its connections.
 *
 * News may overtake packets of the rank itself. A rank that has begun to close (LEFT) has no packet for a rank that it
 * has not met. If the connection is half made, it takes part until that is made, and BYE follows on it, so the news are
 * ignored. From a rank that is dead (FAILED), or left without waiting (GONE), such a connection may still bring packets
 * that were sent before. So the news apply a little later, unless the connection is made meanwhile. A connected rank
 * that is known to have left (`left`) has not failed if its connection breaks before its BYE is read.
 */
#include "msg/channel.h"

#define DOOM_AFTER VK_SECOND /* a half made connection to a rank that is gone */
#define DOOM_POLLS 100       /* the same: this rank may have slept all the time */

enum { KNOWN_LEFT = 1, KNOWN_GONE = 2 }; /* struct msg_peer: left */

/* `how` of a packet. head.tag is the rank, or the number of the round. */
enum { NEWS_FAILED = 1, NEWS_LEFT = 2, NEWS_ROUND = 3, NEWS_GONE = 4 };

/* Counts the neighbours: distances that are a power of two, in either direction. With as many as there are other ranks,
 * the world is not sparse. */
void msg_choose_sparse(msg_world *w)
{
    int neighbours = 0;
    for (int i = 1; i < w->n_ranks; i++)
        neighbours += (i & (i - 1)) == 0 || ((w->n_ranks - i) & (w->n_ranks - i - 1)) == 0;
    w->sparse = w->channel && w->channel->meet && w->policy.connect == MSG_CONNECT_FIRST && neighbours < w->n_ranks - 1;
}

void msg_need(struct msg_peer *peer)
{
    if (!peer->met && !peer->gone)
        peer->channel->meet(peer);
}

static void send_bye(struct msg_peer *peer)
{
    struct msg_packet bye = {.head.kind = MSG_PKT_BYE};
    msg_push_control(peer, &bye);
}

void msg_met(struct msg_peer *peer)
{
    vk_store_relaxed(&peer->met, 1); /* rooms above read it without the lock */
    MSG_COUNT(peer->world, connections, 1);
    if (peer->world->closing) /* the BYEs have been sent */
        send_bye(peer);
}

/* ---------------------------------------------------------------- spreading */

/* `rank` is the rank in question, or the number of the round. Control packets wait in the queue if the channel is full.
 */
static void push_news(struct msg_peer *to, int how, int rank)
{
    struct msg_packet p = {.head = {.kind = MSG_PKT_NEWS, .tag = rank}, .rest.how = (uint32_t)how};
    msg_push_control(to, &p);
}

/* To all ranks that this one is connected to. A push may find a rank dead, which spreads the news of that first. */
static void spread(msg_world *w, int how, int rank)
{
    for (int i = 0; i < w->n_ranks; i++)
        if (i != w->rank && i != rank && w->peers[i].met && !w->peers[i].gone)
            push_news(&w->peers[i], how, rank);
}

/* News of a departure: spread once by each rank. */
static void spread_left(struct msg_peer *peer, int how)
{
    int bit = how == NEWS_LEFT ? KNOWN_LEFT : KNOWN_GONE;
    if (peer->left & bit)
        return;
    peer->left |= (uint8_t)bit;
    spread(peer->world, how, peer->rank);
}

/* The rounds do not end any more. All departures so far become news. */
static void begin_spreading(msg_world *w)
{
    if (w->spreading)
        return;
    w->spreading = 1;
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].state == MSG_PEER_LEFT || (i == w->rank && w->closing))
            spread_left(&w->peers[i], NEWS_LEFT);
}

void msg_spread_failure(struct msg_peer *peer)
{
    msg_world *w = peer->world;
    if (!w->sparse)
        return;
    begin_spreading(w);
    spread(w, NEWS_FAILED, peer->rank);
}

void msg_spread_departure(struct msg_peer *peer)
{
    if (peer->world->spreading)
        spread_left(peer, NEWS_LEFT);
}

void msg_spread_gone(struct msg_peer *peer)
{
    if (!peer->world->sparse)
        return;
    begin_spreading(peer->world);
    spread_left(peer, NEWS_GONE);
}

/* ---------------------------------------------------------------- arrival */

/* News of a rank that has not been met. */
static void apply(struct msg_peer *peer, int how)
{
    peer->doomed = 0;
    if (how == NEWS_FAILED) {
        msg_peer_failed(peer, "another rank has reported it");
        return;
    }
    peer->gone = 1;
    peer->channel->part(peer);
    msg_bye_arrived(peer);
}

/* Applies news that have waited for a half made connection long enough. Both limits must have passed: a process that
 * was stopped has not polled. Returns how many were applied. */
int msg_check_doomed(msg_world *w)
{
    int n = 0;
    if (!w->doomed_at || ++w->doomed_polls < DOOM_POLLS || vk_now() < w->doomed_at)
        return 0;
    w->doomed_at = 0;
    for (int i = 0; i < w->n_ranks; i++)
        if (w->peers[i].doomed && !w->peers[i].met && !w->peers[i].gone) {
            apply(&w->peers[i], w->peers[i].doomed);
            n++;
        }
    return n;
}

/* Whether a connection to the rank was begun and is not made yet. */
static int is_half_made(const struct msg_peer *peer)
{
    return !peer->met && peer->channel->is_meeting(peer);
}

/* Delays news of a rank whose connection is half made. A later call starts the delay of all such news again. */
static void doom(struct msg_peer *peer, int how)
{
    peer->doomed = (uint8_t)how;
    peer->world->doomed_at = vk_now() + DOOM_AFTER;
    peer->world->doomed_polls = 0;
}

/* The news are spread in any case in which they are new here, also if they are applied later. */
static void failure_arrived(struct msg_peer *peer)
{
    msg_world *w = peer->world;
    begin_spreading(w);
    if (peer->met || peer->gone || peer->doomed == NEWS_FAILED)
        return;
    if (is_half_made(peer))
        doom(peer, NEWS_FAILED);
    else
        apply(peer, NEWS_FAILED);
    spread(w, NEWS_FAILED, peer->rank);
}

/* Spread first: what this rank has to spread besides may meet ranks that have gone, too (msg_peer_failed: `left`). */
static void departure_arrived(struct msg_peer *peer, int how)
{
    spread_left(peer, how);
    begin_spreading(peer->world);
    if (peer->met || peer->gone)
        return;
    if (!is_half_made(peer))
        apply(peer, how);
    else if (how == NEWS_GONE && !peer->doomed)
        doom(peer, how);
}

/* `peer` has sent the packet, and its fields may have any value. A round counts only if it comes from the right
 * partner. */
void msg_news_arrived(struct msg_peer *peer, const struct msg_packet *p)
{
    msg_world *w = peer->world;
    int n = p->head.tag;
    if (!w->sparse)
        return;
    if (p->rest.how == NEWS_ROUND) {
        if (n >= 0 && n < 31 && (peer->rank + (INT64_C(1) << n)) % w->n_ranks == w->rank)
            w->rounds_arrived |= UINT32_C(1) << n;
        return;
    }
    if (n < 0 || n >= w->n_ranks || n == w->rank)
        return;
    if (p->rest.how == NEWS_FAILED)
        failure_arrived(&w->peers[n]);
    else if (p->rest.how == NEWS_LEFT || p->rest.how == NEWS_GONE)
        departure_arrived(&w->peers[n], (int)p->rest.how);
}

/* ---------------------------------------------------------------- departure */

/* Is a connection half made? One to a rank that has begun to close may stay so, and neither rank needs it. */
static int has_half_made(const msg_world *w)
{
    for (int i = 0; i < w->n_ranks; i++)
        if (is_half_made(&w->peers[i]) && !w->peers[i].left)
            return 1;
    return 0;
}

/* In a job with a failure: is there news of each rank, or can no more come? */
static int all_accounted(const msg_world *w)
{
    int unknown = 0, connected = 0;
    for (int i = 0; i < w->n_ranks; i++) {
        const struct msg_peer *p = &w->peers[i];
        unknown += i != w->rank && p->state == MSG_PEER_CONNECTED && !p->gone && !p->left;
        connected += i != w->rank && p->met && !p->gone;
    }
    return unknown == 0 || connected == 0;
}

/* Called repeatedly while the world closes. Each call begins all rounds whose predecessors have come in. Returns 1 once
 * this rank may leave. */
int msg_all_leaving(msg_world *w)
{
    if (!w->sparse)
        return 1;
    if (has_half_made(w))
        return 0;
    if (w->spreading)
        return all_accounted(w);
    while (w->round == 0 || w->rounds_arrived & UINT32_C(1) << (w->round - 1)) {
        if (INT64_C(1) << w->round >= w->n_ranks)
            return 1;
        int to = (int)((w->rank + (INT64_C(1) << w->round)) % w->n_ranks);
        push_news(&w->peers[to], NEWS_ROUND, w->round++);
        if (w->spreading) /* the push has found a rank dead */
            return 0;
    }
    return 0;
}
