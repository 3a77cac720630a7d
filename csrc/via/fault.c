/*
 * Faults on request: the calls that put the decorator of link/fault.c before a NIC's link and take it away again, and
 * what it needs to know of connections.
 *
 * While it is there the NIC says so to its peers (`lossy`): connections made meanwhile run the whole protocol even over
 * a link that loses nothing.
 *
 *     nic->ops, nic->link --> fault --> (tap) --> link       decorated; without faults: --> (tap) --> link
 */
#include <stdlib.h>
#include <string.h>

#include "../link/fault.h"
#include "internal.h"

/* ---------------------------------------------------------------- what the decorator asks for */

/* The decorator has something to hand on at that time. */
void link_timer(struct via_nic *nic, uint64_t at)
{
    via_timer(nic, at);
}

/* By the sender's VI and the key that it uses: only frames of its present connection are meant. A handshake's frames
 * are repeated where they get lost, so they need no care. */
int link_must_arrive(struct via_nic *nic, const struct wire_header *h)
{
    const struct via_vi *vi = h->src_vi < VIA_MAX_VI ? nic->vi_by_number[h->src_vi] : NULL;
    return vi && vi->lossless && vi->peer_key == h->key && vi->state != VIP_STATE_CONNECT_PENDING;
}

void link_deafen(struct via_nic *nic, int deaf)
{
    nic->deaf = deaf;
    nic->whole_message =
        via_whole_message(nic); /* all take the long way through link_deliver(), which looks at `deaf` */
}

/* ---------------------------------------------------------------- the calls */

/* The decorator is in place. 0, or VIP_ERROR_RESOURCE. Owner only. From now on nic->ops and nic->link are the
 * decorator's, which passes on what it does not spoil to the link behind it. */
static VIP_RETURN decorate(struct via_nic *nic)
{
    if (nic->fault == NULL) {
        if (fault_wrap(nic, &nic->ops, &nic->link) != 0)
            return via_fail(VIP_ERROR_RESOURCE, "faults: memory is exhausted");
        nic->fault = nic->link;
    }
    nic->lossy = 1;
    return VIP_SUCCESS;
}

/* What the decorator had kept back goes out at once. Connections that were made under it stay as careful as they are.
 */
static void undecorate(struct via_nic *nic)
{
    if (nic->fault)
        fault_unwrap(&nic->ops, &nic->link);
    nic->fault = NULL;
    nic->lossy = 0;
}

static int out_of_range(double chance)
{
    return !(chance >= 0 && chance <= 1); /* so that not-a-number is out, too */
}

static int is_no_time(double us)
{
    return !(us >= 0 && us <= 1e15);
}

/* Copies what was given (perhaps by a program that knows fewer fields) and looks at it. */
VIP_RETURN via_settle_faults(const viakit_faults *from, viakit_faults *to)
{
    memset(to, 0, sizeof *to);
    memcpy(to, from, from->size && from->size < sizeof *to ? from->size : sizeof *to);
    to->size = sizeof *to;
    if (out_of_range(to->loss) || out_of_range(to->duplicate) || out_of_range(to->reorder) || out_of_range(to->corrupt))
        return via_fail(VIP_INVALID_PARAMETER, "faults: a chance lies between 0 and 1");
    if (is_no_time(to->delay_us) || is_no_time(to->jitter_us) || is_no_time(to->stall_us) ||
        is_no_time(to->stall_every_us) || is_no_time(to->partition_after_us) ||
        (to->partition_us != VIAKIT_FOR_EVER && is_no_time(to->partition_us)))
        return via_fail(VIP_INVALID_PARAMETER, "faults: a time is 0 or more microseconds, and below 1e15");
    if (to->stall_us > 0 && to->stall_us >= to->stall_every_us)
        return via_fail(VIP_INVALID_PARAMETER, "faults: a stall is shorter than its period: stall=10ms/100ms");
    if (to->reorder_distance > FAULT_MOST_DISTANCE || to->corrupt_bits > 32 || to->n_rules > VIAKIT_MAX_FAULT_RULES)
        return via_fail(VIP_INVALID_PARAMETER, "faults: at most %d frames overtake, 32 bits are flipped, %d rules",
                        FAULT_MOST_DISTANCE, VIAKIT_MAX_FAULT_RULES);
    for (uint32_t i = 0; i < to->n_rules; i++) {
        const viakit_fault_rule *r = &to->rules[i];
        if (r->verdict < VIAKIT_DROP || r->verdict > VIAKIT_CORRUPT || r->kind > 31 || r->first > r->last)
            return via_fail(VIP_INVALID_PARAMETER, "faults: rule %u is none: drop, dup, hold or corrupt frames m-n", i);
    }
    return VIP_SUCCESS;
}

/* NULL takes the decorator away. Frames are counted from 0 from now on, also where it was there already. */
VIP_RETURN viakit_set_faults(VIP_NIC_HANDLE handle, const viakit_faults *faults)
{
    viakit_faults settled;
    VIP_RETURN code = faults ? via_settle_faults(faults, &settled) : VIP_SUCCESS;
    struct via_nic *nic = code ? NULL : via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    if (faults == NULL)
        undecorate(nic);
    else if ((code = decorate(nic)) == VIP_SUCCESS)
        fault_set(nic->fault, &settled);
    via_leave(nic);
    return code;
}

VIP_RETURN via_check_faults_size(const char *function, const viakit_faults *to)
{
    if (to->size && to->size < sizeof to->size)
        return via_fail(VIP_INVALID_PARAMETER, "%s: a struct of %zu bytes: begin with VIAKIT_FAULTS_INIT", function,
                        to->size);
    return VIP_SUCCESS;
}

/* For a program that perhaps knows fewer fields: what it does not know would come to lie behind its struct. */
void via_hand_out_faults(const viakit_faults *from, viakit_faults *to)
{
    size_t size = to->size && to->size < sizeof *to ? to->size : sizeof *to;
    memcpy(to, from, size);
    to->size = size;
}

/* As they were settled. Without any: all fields 0, which as faults does nothing. */
VIP_RETURN viakit_get_faults(VIP_NIC_HANDLE handle, viakit_faults *faults, int *active)
{
    static const viakit_faults none;
    if (faults == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "viakit_get_faults: no place for the faults (NULL)");
    VIP_RETURN code = via_check_faults_size("viakit_get_faults", faults);
    struct via_nic *nic = code ? NULL : via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    const viakit_faults *set = nic->fault ? fault_get(nic->fault) : NULL;
    via_hand_out_faults(set ? set : &none, faults);
    if (active)
        *active = set != NULL;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* For tests: the filter is asked for each frame, as owner of the NIC, so it may call nothing of VIPL. */
VIP_RETURN viakit_set_frame_filter(VIP_NIC_HANDLE handle, viakit_frame_filter filter, void *context)
{
    VIP_RETURN code = VIP_SUCCESS;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    if (filter == NULL)
        undecorate(nic);
    else if ((code = decorate(nic)) == VIP_SUCCESS)
        fault_set_filter(nic->fault, filter, context);
    via_leave(nic);
    return code;
}

/* What VIAKIT_FAULT in the environment says, for programs that do not know of faults. Called once the NIC is open. */
VIP_RETURN via_faults_from_environment(struct via_nic *nic)
{
    viakit_faults faults = {.size = sizeof faults};
    const char *text = getenv("VIAKIT_FAULT");
    if (text == NULL || *text == 0)
        return VIP_SUCCESS;
    VIP_RETURN code = viakit_parse_faults(text, &faults);
    if (code)
        return code;
    via_enter(nic);
    code = decorate(nic);
    if (code == VIP_SUCCESS)
        fault_set(nic->fault, &faults);
    via_leave(nic);
    return code;
}
