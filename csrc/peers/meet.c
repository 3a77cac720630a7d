/*
 * Pairs that connect when they first meet (`sparse`): one rank has a packet for the other, or waits for one.
 *
 *      rank a: peers_meet                                  rank b, in its next call
 *      makes its VI, requests     ---- REQUEST ---->       no VI matches: requested() marks the pair
 *                                                          peers_meetings: peers_meet
 *         MEETING                 <--- REQUEST -----       MEETING
 *         MET                     <--- handshake -->       MET       seen by peers_meetings of each
 *
 * Both sides do the same, and both may begin at once. The provider connects the two requests as it connects all peers,
 * and each side proves the job's secret. The mark proves nothing: a forged request
 * makes this rank request a rank of its own job, at the address that the ranks have exchanged. All forged requests
 * together cost what connecting all pairs at the start costs.
 *
 * A rank that makes no call does not meet others, so the first packet to it waits for its next call.
 */
#include <string.h>

#include "peers/peers.h"

/* Called by the provider, from any thread: the discriminator is name, from, to of this side (name_end in connect.c).
 * The release on `requests` orders it after the mark of the pair. */
static void requested(void *context, const VIP_UINT8 *discriminator, size_t len)
{
    struct peers *p = context;
    int32_t ends[2];
    /* A request for another job, or for a rank that is none of this job, is ignored. Its sender repeats it until it
     * gives up. */
    if (len != p->name_len + sizeof ends || memcmp(discriminator, p->name, p->name_len) != 0)
        return;
    memcpy(ends, discriminator + p->name_len, sizeof ends);
    if (ends[0] != p->rank || ends[1] < 0 || ends[1] >= p->n_ranks || ends[1] == p->rank)
        return;
    vk_store_relaxed(&peers_pair_of(p, ends[1])->requested, 1);
    vk_store_release(&p->requests, 1);
}

/* A request that arrived before this call is not lost, because its sender repeats it. */
int peers_admit(struct peers *p)
{
    for (int i = 0; i < 2; i++) {
        VIP_RETURN code = p->ports[i] ? viakit_on_peer_request(p->ports[i]->nic, p, requested) : VIP_SUCCESS;
        if (code != VIP_SUCCESS)
            return peers_nic_failed(p, "viakit_on_peer_request", code);
    }
    return 0;
}

int peers_meet(struct peers *p, int rank)
{
    struct peers_pair *pair = peers_pair_of(p, rank);
    if (pair->state != PEERS_APART)
        return 0;
    /* An error is final for this pair. Its VI, if it was made, stays for peers_close. */
    int code = peers_make_pair(pair->port, pair);
    if (code == 0)
        code = peers_request(p, rank);
    if (code != 0) {
        pair->state = PEERS_PARTED;
        return code;
    }
    pair->state = PEERS_MEETING;
    /* The list cannot overflow: a pair enters it once, and it has room for all ranks. Relaxed, because peers_sleep
     * reads the number only as a hint. */
    p->meeting[p->n_meeting] = pair;
    vk_store_relaxed(&p->n_meeting, p->n_meeting + 1);
    return 0;
}

/* Removes entry i. The last entry takes its place, so the caller looks at index i again (i--). */
static void remove_meeting(struct peers *p, uint32_t i)
{
    p->meeting[i] = p->meeting[p->n_meeting - 1];
    vk_store_relaxed(&p->n_meeting, p->n_meeting - 1);
}

/* The VI stays until peers_close, because the completion queue may have entries of it. */
void peers_part(struct peers *p, int rank)
{
    struct peers_pair *pair = peers_pair_of(p, rank);
    if (pair->state == PEERS_MEETING) {
        VipDisconnect(pair->vi);
        for (uint32_t i = 0; i < p->n_meeting; i++)
            if (p->meeting[i] == pair)
                remove_meeting(p, i--);
    }
    if (pair->state != PEERS_MET)
        pair->state = PEERS_PARTED;
}

/* Meets all ranks that have requested this one. `requests` is reset first, so a request that is marked during the scan
 * is found by it or by the next. */
static int meet_requested(struct peers *p, void (*over)(void *owner, int rank, int code))
{
    int n = 0, code;
    if (vk_exchange(&p->requests, 0) == 0)
        return 0;
    for (int i = 0; i < p->n_ranks; i++) {
        struct peers_pair *pair = peers_pair_of(p, i);
        if (!vk_load_relaxed(&pair->requested))
            continue;
        vk_store_relaxed(&pair->requested, 0);
        if ((code = peers_meet(p, i)) != 0) {
            over(p->owner, i, code);
            n++;
        }
    }
    return n;
}

/* `over` may part other pairs, so the list is read again after each call. */
int peers_meetings(struct peers *p, void (*over)(void *owner, int rank, int code))
{
    int n = meet_requested(p, over);
    for (uint32_t i = 0; i < p->n_meeting; i++) {
        struct peers_pair *pair = p->meeting[i];
        VIP_VI_ATTRIBUTES attributes;
        VIP_RETURN code = VipConnectPeerDone(pair->vi, &attributes);
        if (code == VIP_NOT_DONE)
            continue;
        remove_meeting(p, i--);
        pair->state = code == VIP_SUCCESS ? PEERS_MET : PEERS_PARTED;
        over(p->owner, peers_rank_of(p, pair),
             code == VIP_SUCCESS ? 0 : peers_nic_failed(p, "VipConnectPeerDone", code));
        n++;
    }
    return n;
}
