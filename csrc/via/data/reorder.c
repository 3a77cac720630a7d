/*
 * The receiver of selective repeat: out-of-order frames are kept until the missing ones have arrived.
 *
 *        expected                                  ahead
 *    -------+------+--+-----------+--+-----------+----- psn ->
 *    placed | gap  |##|    gap    |##|###########|          ## kept
 *
 * The frame's header is kept. Its payload is copied to its place in the program's memory if that is known (ahead.c),
 * and into a slot otherwise. There are 64 slots of equal size in a *group*; a bit per slot records whether it is in
 * use. Groups exist only where frames are kept: a connection without losses has none. Empty groups go to a free list of
 * the NIC, and are freed after a while without use. Their number is bounded; a frame that finds no space is dropped,
 * and so is reported as missing.
 *
 * The receiver reports at the end of each poll of the link in which it had something new to report: a gap, a frame that
 * filled one, or a frame that requested an acknowledgement. It does not report for each frame: one NAK lists all gaps,
 * as a list of struct wire_run.
 *
 * Only the NIC's owner calls these functions.
 */
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "link/frame_format.h"
#include "via/data/data.h"
#include "via/data/place.h"
#include "via/engine.h"
#include "via/limits.h"
#include "via/nic.h"
#include "via/vi.h"

#define GROUP 64                                  /* slots: as many as a word has bits */
#define N_GROUPS (VIA_REORDER_FRAMES / GROUP + 1) /* per VI: the first one may be used in part */
#define NIC_BYTES (64u << 20)                     /* for all VIs of a NIC */

_Static_assert((N_GROUPS & (N_GROUPS - 1)) == 0, "numbers wrap: the groups must go on as they do");

struct via_reorder_group {
    struct via_reorder_group *next;
    uint64_t used_at;
    struct wire_header headers[GROUP];
    uint8_t *payloads[GROUP]; /* in the slot, or at its place */
    uint8_t slots[];          /* [GROUP * stride] */
};

/* Group g holds all psn with psn / GROUP % N_GROUPS == g. Invariant: a group exists if, and only if, held[g] is not 0.
 *
 *      psn     ... 127 | 128 ... 191 | 192 ... 255 | 256 ...        expected_psn 150: groups 2, 3, 4 ...
 *      group       1   |      2      |      3      |  4             held[2]: the bits of 151 to 191 may be set */
struct via_reorder {
    uint64_t held[N_GROUPS];
    struct via_reorder_group *groups[N_GROUPS];
};

/* Bytes per slot: the largest payload that this NIC receives, rounded up to a multiple of 8. */
static inline size_t stride(const struct via_nic *nic)
{
    return (nic->limits.max_payload + 7) & ~(size_t)7;
}

static inline uint32_t group_of(uint32_t psn)
{
    return psn / GROUP % N_GROUPS;
}

static inline uint64_t bit_of(uint32_t psn)
{
    return 1ull << psn % GROUP;
}

/* The number of groups from that of expected_psn to that of psn. */
static inline uint32_t groups_ahead(const struct via_vi *vi, uint32_t psn)
{
    /* Counted from the beginning of expected_psn's group, so that both may lie anywhere in theirs. */
    return (psn - (vi->expected_psn & ~(GROUP - 1u))) / GROUP;
}

static inline int is_held(const struct via_vi *vi, uint32_t psn)
{
    /* A number before the group of expected_psn wraps to a large distance, and is not held. */
    return vi->reorder && groups_ahead(vi, psn) < N_GROUPS && (vi->reorder->held[group_of(psn)] & bit_of(psn));
}

static inline uint8_t *slot_of(const struct via_vi *vi, uint32_t psn)
{
    return vi->reorder->groups[group_of(psn)]->slots + psn % GROUP * stride(vi->nic);
}

/* Returns a free group, or a new one within the bound. NULL: the frame must be dropped. */
static struct via_reorder_group *get_group(struct via_nic *nic)
{
    struct via_reorder_group *g = nic->reorder_free;
    if (g) {
        nic->reorder_free = g->next;
        return g;
    }
    /* All groups of a NIC have one size, so any VI can use a free one. */
    size_t len = sizeof *g + GROUP * stride(nic);
    if ((nic->n_reorder_groups + 1) * len > NIC_BYTES || (g = malloc(len)) == NULL)
        return NULL;
    nic->n_reorder_groups++;
    return g;
}

/* Puts a group on the free list. Its frames are void, but their bytes stay unchanged until the group is reused or
 * via_reorder_trim() frees it. */
static void put_group(struct via_nic *nic, struct via_reorder_group *g)
{
    g->next = nic->reorder_free;
    g->used_at = nic->now;
    nic->reorder_free = g;
    via_timer(nic, nic->now + VK_SECOND); /* trimmed even if no connection is left */
}

/* Makes space for this frame; returns 0 if there is no space. */
static int make_room(struct via_vi *vi, uint32_t psn)
{
    if (groups_ahead(vi, psn) >= N_GROUPS)
        return 0; /* its index belongs to a group of earlier numbers */
    if (vi->reorder == NULL)
        vi->reorder = calloc(1, sizeof *vi->reorder);
    if (vi->reorder == NULL)
        return 0;
    struct via_reorder_group **g = &vi->reorder->groups[group_of(psn)];
    if (*g == NULL)
        *g = get_group(vi->nic);
    return *g != NULL;
}

int via_reorder_holds(const struct via_vi *vi, uint32_t psn, uint32_t n)
{
    while (n && !is_held(vi, psn)) {
        psn++;
        n--;
    }
    return n != 0;
}

/* Keeps a frame; a second copy of it is dropped. A payload whose place is unknown is copied twice: into the slot, and
 * to its place later. That is the price of a loss. */
int via_reorder_keep(struct via_vi *vi, const struct wire_header *h, const uint8_t *payload)
{
    if (is_held(vi, h->psn)) {
        VI_COUNT(vi, dropped_duplicate, 1);
        return 0;
    }
    /* Slots have room for max_payload bytes, and the length was written by the peer. */
    if (h->len > vi->nic->limits.max_payload || !make_room(vi, h->psn)) {
        VI_COUNT(vi, dropped_out_of_order, 1);
        return 0;
    }
    struct via_reorder_group *g = vi->reorder->groups[group_of(h->psn)];
    uint8_t *place = via_place_early(vi, h), *to = place ? place : slot_of(vi, h->psn);
    g->headers[h->psn % GROUP] = *h;
    g->payloads[h->psn % GROUP] = to;
    if (to != payload) /* a link may have placed it already (via_link_place_ahead) */
        memcpy(to, payload, h->len);
    if (place && to != payload)
        via_count_copy(vi, h->len);
    /* Set the bit last: a slot whose bit is set holds a complete frame. */
    vi->reorder->held[group_of(h->psn)] |= bit_of(h->psn);
    VI_COUNT(vi, frames_kept_out_of_order, 1);
    return 1;
}

/* A payload that was placed early is only valid if its place is the one that the frames before it lead to. Otherwise a
 * piece in front of it had another length than expected, or the program has changed or deregistered the memory. The
 * frame then counts as missing: it is retransmitted, and takes the usual path. */
const uint8_t *via_reorder_next(struct via_vi *vi, struct wire_header *h)
{
    uint32_t psn = vi->expected_psn;
    if (!is_held(vi, psn))
        return NULL;
    const struct via_reorder_group *g = vi->reorder->groups[group_of(psn)];
    const uint8_t *payload = g->payloads[psn % GROUP];
    *h = g->headers[psn % GROUP];
    if (payload == slot_of(vi, psn))
        return payload;
    /* A first piece begins a message, whose receive is not in progress yet: take_receive() finds it. */
    if (payload ==
        (h->flags & WIRE_FLAG_FIRST ? via_first_place(vi, h->len) : via_next_place(vi, h->version_kind & 15, h->len)))
        return payload;
    via_reorder_done(vi, psn);
    return NULL;
}

/* Releases the frame. The last frame of a group releases the group. */
void via_reorder_done(struct via_vi *vi, uint32_t psn)
{
    struct via_reorder *e = vi->reorder;
    uint32_t g = group_of(psn);
    e->held[g] &= ~bit_of(psn);
    if (e->held[g] == 0) {
        put_group(vi->nic, e->groups[g]);
        e->groups[g] = NULL;
    }
}

/* Counts one by one: for instruments only. */
uint32_t via_reorder_missing(const struct via_vi *vi)
{
    uint32_t n = 0;
    for (uint32_t psn = vi->expected_psn; vi->has_gap && wire_before(psn, vi->ahead_psn); psn++)
        n += !is_held(vi, psn);
    return n;
}

/* Drops what is kept, because the connection ends. */
void via_reorder_drop(struct via_vi *vi)
{
    struct via_reorder *e = vi->reorder;
    if (e == NULL)
        return;
    for (int g = 0; g < N_GROUPS; g++)
        if (e->groups[g])
            put_group(vi->nic, e->groups[g]);
    free(e);
    vi->reorder = NULL;
}

/* Frees groups that were unused for a second. Called by the timers. The memory of one burst of losses is not kept for
 * the next. */
void via_reorder_trim(struct via_nic *nic)
{
    struct via_reorder_group **p = &nic->reorder_free;
    while (*p) {
        struct via_reorder_group *g = *p;
        if (nic->now - g->used_at < VK_SECOND) {
            p = &g->next;
            continue;
        }
        *p = g->next;
        free(g);
        nic->n_reorder_groups--;
    }
    if (nic->reorder_free)
        via_timer(nic, nic->now + VK_SECOND);
}

/* Frees all groups. The NIC closes, and no VI is left, so all groups are on the free list. */
void via_reorder_fini(struct via_nic *nic)
{
    while (nic->reorder_free) {
        struct via_reorder_group *g = nic->reorder_free;
        nic->reorder_free = g->next;
        free(g);
    }
}

/* ---------------------------------------------------------------- ACK and NAK */

/* Returns how many frames from psn on, of this group and before `end`, are all held or all missing. */
static uint32_t alike(const struct via_vi *vi, uint32_t psn, uint32_t end, int *held)
{
    uint64_t word =
        vi->reorder && groups_ahead(vi, psn) < N_GROUPS ? vi->reorder->held[group_of(psn)] >> psn % GROUP : 0;
    /* A run ends with its word; list_gaps joins it with the next. */
    uint32_t room = GROUP - psn % GROUP, len;
    *held = (int)(word & 1);
    uint64_t others = *held ? ~word : word; /* its lowest bit is the first that differs from psn's */
    len = others ? (uint32_t)__builtin_ctzll(others) : GROUP;
    if (len > room)
        len = room;
    return len < end - psn ? len : end - psn;
}

/* Lists the missing and held frames from expected_psn on. A run begins where a missing frame follows a held one, or at
 * the very beginning, with missing 0 perhaps. The next NAK lists what does not fit the list, or 16 bits. The loop works
 * on words, not frames, because a link that loses one frame in a hundred sends such a list after every poll.
 *
 *      psn      10 11 12 13 14 15        expected 10, ahead 16
 *               -- -- ## ## -- ##        ## held
 *      runs    {2      , 2} {1, 1}       {missing, held} */
static uint32_t list_gaps(const struct via_vi *vi, struct wire_run *runs)
{
    uint32_t psn = vi->expected_psn, n = 0;
    int was_held = 0, held;
    while (wire_before(psn, vi->ahead_psn)) {
        uint32_t len = alike(vi, psn, vi->ahead_psn, &held);
        if (n == 0 || (was_held && !held)) {
            if (n == WIRE_MAX_RUNS)
                break;
            runs[n++] = (struct wire_run){0, 0};
        }
        uint16_t *count = held ? &runs[n - 1].held : &runs[n - 1].missing;
        if (len > (uint32_t)(UINT16_MAX - *count)) {
            *count = UINT16_MAX;
            break;
        }
        *count = (uint16_t)(*count + len);
        was_held = held;
        psn += len;
    }
    return n;
}

/* Sends an ACK, or a NAK with the gaps if there are any: all frames before expected_psn have arrived. A NAK
 * acknowledges as well. On a lossless link no peer requests an acknowledgement twice, so one that finds the link full
 * must stay owed. */
void via_send_ack(struct via_vi *vi)
{
    struct wire_run runs[WIRE_MAX_RUNS];
    uint32_t n = vi->has_gap ? list_gaps(vi, runs) : 0;
    int sent =
        n ? via_send_block(vi, WIRE_NAK, 0, 0, 0, runs, n * sizeof *runs) == 1 : via_send_control(vi, WIRE_ACK, 0, 0);
    if (!sent)
        via_owe_ack(vi, 1);
    else if (n)
        VI_COUNT(vi, naks_sent, 1);
}

/* Schedules one report per poll, however many frames caused it. via_send_answers() empties the list at the end of the
 * poll. */
void via_owe_reply(struct via_vi *vi)
{
    if (vi->on_answer_list)
        return;
    vi->on_answer_list = 1;
    vi->answer_next = vi->nic->answer_list;
    vi->nic->answer_list = vi;
}

/* Detaches the list first: an ACK or NAK may find the link full, and is then owed as an acknowledgement, not put on
 * this list again. */
void via_send_answers(struct via_nic *nic)
{
    struct via_vi *vi = nic->answer_list;
    nic->answer_list = NULL;
    while (vi) {
        struct via_vi *next = vi->answer_next;
        vi->on_answer_list = 0;
        if (vi->state == VIP_STATE_CONNECTED)
            via_send_ack(vi);
        vi = next;
    }
}
