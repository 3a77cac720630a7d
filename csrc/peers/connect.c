/*
 * Connecting all ranks of a job, pair by pair, as peers (VipConnectPeerRequest). Both sides name the pair, neither
 * blocks, and the provider retransmits lost requests. Pairs connect in the order of a tournament, in which every rank
 * has a new partner in each round. So both sides of a pair start at about the same time:
 *
 *      4 ranks, round 0:  0-3 1-2      round 1:  0-1 2-3      round 2:  0-2 1-3
 *
 * At most WINDOW pairs are in progress at once, which keeps the number of retransmitted requests small when 64 ranks
 * share 2 cores.
 */
#include <errno.h>
#include <sched.h>
#include <stdio.h>
#include <string.h>
#include <sys/epoll.h>
#include <unistd.h>

#include "base/clock.h"
#include "peers/peers.h"

/* Pairs in progress, each with a request that the provider retransmits until the other side makes its own. */
#define WINDOW 16
/* A net address is host, then discriminator, of any lengths. The union fits the longest used here. */
union net_address {
    VIP_NET_ADDRESS net;
    uint8_t bytes[4 + VIAKIT_NIC_ADDRESS_LEN + PEERS_NAME_LEN + 8];
};

void peers_set_address(struct peers_pair *pair, const uint8_t *address, uint8_t len)
{
    pair->address_len = len;
    memcpy(pair->address, address, len);
}

/* Writes the host, then the discriminator "this job, from, to". Both ends of a pair name the same connection by it, and
 * no other job or pair uses it. */
static void name_end(const struct peers *p, union net_address *a, const uint8_t *host, size_t host_len, int from,
                     int to)
{
    uint32_t pair[2] = {(uint32_t)from, (uint32_t)to};
    uint8_t *at = a->bytes + offsetof(VIP_NET_ADDRESS, HostAddress);
    memset(a, 0, sizeof *a);
    a->net.HostAddressLen = (VIP_UINT16)host_len;
    a->net.DiscriminatorLen = (VIP_UINT16)(p->name_len + sizeof pair);
    memcpy(at, host, host_len);
    memcpy(at + host_len, p->name, p->name_len);
    memcpy(at + host_len + p->name_len, pair, sizeof pair);
}

/* Starts to connect to a rank. VipConnectPeerDone reports when both sides have requested it. */
int peers_request(struct peers *p, int rank)
{
    struct peers_pair *pair = peers_pair_of(p, rank);
    union net_address local, remote;
    name_end(p, &local, pair->port->address, 6, p->rank, rank);
    name_end(p, &remote, pair->address, pair->address_len, rank, p->rank);
    VIP_RETURN code = VipConnectPeerRequest(pair->vi, &local.net, &remote.net, VIP_INFINITE);
    return code == VIP_SUCCESS ? 0 : peers_nic_failed(p, "VipConnectPeerRequest", code);
}

/* Returns the partner of a rank in a round of a tournament of n, or -1 for none. The circle method: one player stays
 * fixed, the others rotate, and each meets the opposite one. If n is odd, the fixed player is a dummy, and its
 * partner rests. Each pair meets in exactly one round, and both sides compute the same result.
 *
 * Two partners on the circle add up to the round, modulo circle. The rank whose double is the round would be its own
 * partner, so it meets the fixed player. The fixed player finds it by dividing by 2, which is multiplying by all / 2:
 * 2 (all / 2) = circle + 1, which is 1 modulo circle. */
static int partner_in(int round, int rank, int n)
{
    int all = n + n % 2, circle = all - 1;
    int partner =
        rank == circle ? (int)((int64_t)round * (all / 2) % circle) : ((round - rank) % circle + circle) % circle;
    if (partner == rank)
        partner = circle;
    return partner < n ? partner : -1;
}

/* Checks the pairs in progress, and removes those that are connected. Returns 0 or an error. The first error ends
 * peers_connect: the user closes the job, which also ends the other requests. */
static int collect(struct peers *p, int *under_way, int *n)
{
    for (int i = 0; i < *n;) {
        VIP_VI_ATTRIBUTES attributes;
        VIP_RETURN code = VipConnectPeerDone(peers_pair_of(p, under_way[i])->vi, &attributes);
        if (code == VIP_SUCCESS) {
            peers_pair_of(p, under_way[i])->state = PEERS_MET;
            /* The last entry replaces the finished one, and is checked next. */
            under_way[i] = under_way[--*n];
        } else if (code == VIP_NOT_DONE)
            i++;
        else
            return peers_nic_failed(p, "VipConnectPeerDone", code);
    }
    return 0;
}

/* Reports a time-out with its probable reason. Opens a descriptor to check that the limit is not reached, because the
 * provider does not report why the other side did not connect. */
static int out_of_time(struct peers *p, int rank)
{
    char text[256];
    int fd = epoll_create1(EPOLL_CLOEXEC), none_left = fd < 0 && errno == EMFILE;
    if (fd >= 0)
        close(fd);
    snprintf(text, sizeof text,
             none_left ? "rank %d could not be connected: this process may not open more files, and over shm it needs "
                         "four for each rank of its host; raise the limit (ulimit -n)"
                       : "rank %d could not be connected in time: is it running?",
             rank);
    return p->failed(p->owner, PEERS_ERR_TIMEOUT, text);
}

/* A connection on shm is ready for direct writes once both sides have mapped each other's memory, possibly a little
 * after the first frame. Without a NIC thread, polls do this mapping: several polls that find nothing show that it is
 * done. */
static void finish_mapping(const struct peers *p)
{
    for (int idle = 0, n = 0; p->ports[0] && idle < 8 + p->n_local / 8;) {
        if (viakit_poll(p->ports[0]->nic, &n) != VIP_SUCCESS)
            return;
        idle += n == 0;
    }
}

int peers_connect(struct peers *p, uint64_t deadline, int (*idle)(void *context), void *context)
{
    int under_way[WINDOW], n = 0, rounds = p->n_ranks + p->n_ranks % 2 - 1, code;
    for (int round = 0; round < rounds || n;) {
        while (round < rounds && n < WINDOW) {
            int partner = partner_in(round++, p->rank, p->n_ranks);
            if (partner < 0 || (p->sparse && !peers_are_neighbours(p->rank, partner, p->n_ranks)))
                continue;
            peers_pair_of(p, partner)->state = PEERS_MEETING;
            if ((code = peers_request(p, partner)) != 0)
                return code;
            under_way[n++] = partner;
        }
        /* Rounds are not a barrier: the next pair begins as soon as a place in the window is free. */
        int before = n;
        if ((code = collect(p, under_way, &n)) != 0)
            return code;
        /* The deadline applies only if no pair has connected in this pass. */
        if (n < before || n == 0)
            continue;
        if (vk_now() > deadline)
            return out_of_time(p, under_way[0]);
        /* The ranks may share cores, so the processor goes to another rank, which may complete a connection. */
        if ((code = idle(context)) != 0)
            return code;
        sched_yield();
    }
    finish_mapping(p);
    return 0;
}
