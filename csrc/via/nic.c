/*
 * The NIC: opening by device name, closing whatever is left, attributes and counters.
 *
 * A NIC of VIA is a card; here it is a struct via_nic, a link (link/link.h: the wire it stands on) and, unless the
 * program wants none, a thread that drives it when nobody else does (engine.c). Everything else that a program makes
 * belongs to a NIC: tags, regions, VIs, completion queues. VIPL says that a process may open the same NIC several
 * times; here each opening is a NIC of its own, with its own port on the wire, and nothing is shared between them.
 *
 *    viakit_open_nic        find_device -> a free slot of the pool -> via_own_init -> set_up:
 *                           link open -> region table -> thread
 *    VipCloseNic            the same backwards; it may meet calls of other threads at any moment, see there
 *
 * The slots of NICs are never unmapped, and what stands before `ops` in a slot is never cleared (base/pool.h), so a
 * call that holds a handle of a NIC that was closed a moment ago can still ask who owns it, and finds the handle dead.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "config.h"
#include "internal.h"
#include "snapshot.h"
#include "tap.h"

#define DEVICES "give loop, loop:NAME, shm, shm:NAME, eth:INTERFACE or udp:ADDRESS"

struct vk_pool via_nic_pool = VK_POOL_INIT(struct via_nic, 1024, ops);
int via_process_id;

/* A NIC belongs to the process that opened it: its thread and its peers' idea of it do not survive a fork, and its
 * sockets are closed in the child (base/files.h). Each call compares nic->pid with this, and so does not need the
 * system call. */
static void child_of_fork(void)
{
    via_process_id = (int)getpid();
    /* A slot keeps its word of ownership when it is freed, and a thread that is not in the child may have held it at
     * that moment: it was closing the NIC, or had come in by an old handle. Whoever opens the next NIC in this slot
     * would wait for it for ever. Nobody is inside any NIC here. */
    for (uint32_t i = 0; i < via_nic_pool.n_touched; i++)
        ((struct via_nic *)(void *)(via_nic_pool.base + i * via_nic_pool.stride))->own = (struct via_own){0};
}

__attribute__((constructor)) static void begin(void)
{
    via_process_id = (int)getpid();
    pthread_atfork(NULL, NULL, child_of_fork);
}

/* Fills in defaults, bounds what would not work. A program may have been compiled with an older viakit.h, whose struct
 * is shorter: `size` says how much of it is there, and what it does not know is left at its default. 0 in a field means
 * the default, too. */
static void settle_options(viakit_nic_options *to, const viakit_nic_options *from)
{
    memset(to, 0, sizeof *to);
    if (from)
        memcpy(to, from, from->size && from->size < sizeof *to ? from->size : sizeof *to);
    to->size = sizeof *to;
#define DEFAULT(field, value) to->field = to->field ? to->field : (value)
    DEFAULT(window, 64);
    DEFAULT(rto_us, 10000);   /* a busy machine lets a process wait for some milliseconds: that is no loss */
    DEFAULT(max_retries, 10); /* with back-off 3.1 s, after keepalive_ms of silence; 5.5 s where answers were slow */
    DEFAULT(ack_delay_us, 200);
    DEFAULT(keepalive_ms, 1000);
    DEFAULT(spin_us, 20);
    DEFAULT(takeover_us, 400);
#undef DEFAULT
    if (to->takeover_us < VIA_TAKEOVER_LEAST_US)
        to->takeover_us = VIA_TAKEOVER_LEAST_US;
    if (to->takeover_us > VIA_TAKEOVER_MOST_US)
        to->takeover_us = VIA_TAKEOVER_MOST_US;
    /* flight_end[] is a ring of VIA_FLIGHT entries, and one that is full must not look empty (reliable.c). */
    if (to->window > VIA_FLIGHT - 1)
        to->window = VIA_FLIGHT - 1;
}

/* A device is the name of a link, alone or with ":what" behind it. *rest is what stands behind the colon, for the link
 * to understand. */
static const struct link_ops *find_link(const char *device, const char **rest)
{
    /* This is the list to which another wire is added. */
    static const struct link_ops *const links[] = {&link_loop, &link_shm, &link_eth, &link_udp};
    for (size_t i = 0; i < sizeof links / sizeof *links; i++) {
        size_t n = strlen(links[i]->name);
        if (strncmp(device, links[i]->name, n) == 0 && (device[n] == 0 || device[n] == ':')) {
            *rest = device[n] ? device + n + 1 : "";
            return links[i];
        }
    }
    return NULL;
}

/* What a link says in errno values, in VIPL's: a name that means nothing is the caller's mistake, all else a lack of
 * something. */
static VIP_RETURN code_of(int error)
{
    switch (-error) {
    case ENODEV:
    case EINVAL:
    case ENAMETOOLONG:
        return VIP_INVALID_PARAMETER;
    default:
        return VIP_ERROR_RESOURCE;
    }
}

/* Of a NIC that is wholly shut down. As its last act the handle dies. */
static void free_nic(struct via_nic *nic)
{
    free(nic->vi_by_number);
    free(nic->events);
    free(nic->discovered);
    free(nic->hosts_file);
    vk_pool_put(&via_nic_pool, nic); /* the last thing: then the next one may have the slot */
}

/* Opens the link, and makes what the NIC needs of memory and threads. On failure nothing of that is left, the slot
 * itself excepted. */
static VIP_RETURN set_up(struct via_nic *nic, const char *rest)
{
    /* Frames name VIs by number: this is where rx.c looks them up. */
    nic->vi_by_number = calloc(VIA_MAX_VI, sizeof(struct via_vi *));
    nic->events = calloc(VIA_MAX_EVENTS, sizeof *nic->events);
    if (nic->vi_by_number == NULL || nic->events == NULL)
        return via_no_memory("VipOpenNic");
    via_explain("%s", "");
    int error = nic->ops->open(nic, rest, &nic->options, &nic->link, &nic->limits);
    if (error) {
        if (*viakit_last_error() == '\0') /* the link has mostly explained */
            via_explain("VipOpenNic: %s: %s", nic->device, strerror(-error));
        errno = -error; /* stays: a caller can tell "not allowed" from "not there" */
        return code_of(error);
    }
    /* The link has said what it can; the provider's own bounds may be lower (a batch is built on the stack, see tx.c).
     */
    nic->checksum = nic->limits.checksum;
    nic->whole_message = via_whole_message(nic);
    if (nic->limits.max_batch > VIA_BATCH)
        nic->limits.max_batch = VIA_BATCH;
    if (nic->limits.max_window && nic->options.window > nic->limits.max_window)
        nic->options.window = nic->limits.max_window;
    error = via_mem_init(nic);
    if (error == 0) {
        error = via_engine_start(nic);
        if (error)
            via_mem_fini(nic);
    }
    if (error) {
        nic->ops->close(nic->link);
        return via_fail(VIP_ERROR_RESOURCE, "VipOpenNic: %s", strerror(-error));
    }
    return VIP_SUCCESS;
}

/* The device and its link behind the name that a program gives: a link's own name, or one that the user, or history,
 * has given to a device (config.h). rest points into `real`. */
static VIP_RETURN find_device(const char *name, char real[64], const struct link_ops **ops, const char **rest)
{
    char device[128], where[300];
    if (config_device(name, device, sizeof device, where, sizeof where) < 0)
        return VIP_INVALID_PARAMETER; /* explained: which file, which line */
    *ops = strlen(device) < 64 ? find_link(strcpy(real, device), rest) : NULL;
    if (*ops)
        return VIP_SUCCESS;
    if (*where)
        return via_fail(VIP_INVALID_PARAMETER, "device '%.64s' is '%.64s' by %.200s, which is no device: " DEVICES,
                        name, device, where);
    return via_fail(VIP_INVALID_PARAMETER,
                    "no device '%.64s': " DEVICES ", or a name that VIAKIT_DEVICES or "
                    "viakit.conf gives to one of these",
                    name);
}

/* A failure leaves nothing behind: whatever was made is taken back in the order of the table at the top. */
VIP_RETURN viakit_open_nic(const char *device, const viakit_nic_options *options, VIP_NIC_HANDLE *out)
{
    VK_HOLD_CANCEL;
    const char *rest = "";
    if (device == NULL || out == NULL)
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipOpenNic: a device name and a place for the handle are needed (NULL)");
    const struct link_ops *ops;
    char real[sizeof((struct via_nic *)0)->device];
    VIP_RETURN code = find_device(device, real, &ops, &rest);
    if (code)
        return code;
    /* From here on others may look into the slot through an old handle: what they read before they are inside (pid,
     * own) is written by atomic stores, and via_own_init waits until nobody is inside any more. */
    struct via_nic *nic = vk_pool_get(&via_nic_pool);
    if (nic == NULL)
        return via_no_object("VipOpenNic", &via_nic_pool, "NICs");
    nic->ops = ops;
    vk_store_relaxed(&nic->pid, via_process_id);
    strcpy(nic->device, real);
    snprintf(nic->name, sizeof nic->name, "%s", device);
    settle_options(&nic->options, options);
    via_own_init(&nic->own);
    code = set_up(nic, rest);
    if (code) {
        free_nic(nic);
        return code;
    }
    /* VIAKIT_FAULT and VIAKIT_TAP: a program of 2001 can be made to suffer, and be watched, without a change to it. */
    code = via_faults_from_environment(nic);
    if (code == VIP_SUCCESS)
        code = via_tap_from_environment(nic);
    if (code) {
        VipCloseNic(vk_pool_handle(nic));
        return code;
    }
    /* Only now: results are set on success alone. And only now the inspector may see the NIC, for now it is whole. */
    *out = vk_pool_handle(nic);
    via_inspect_begin(nic);
    return VIP_SUCCESS;
}

/* VIPL's own call: no options, so every default. */
VIP_RETURN VipOpenNic(const VIP_CHAR *device, VIP_NIC_HANDLE *out)
{
    return viakit_open_nic(device, NULL, out);
}

/* Everything that the program left is closed in order: connections, VIs, queues, regions, tags, link. From the first
 * moment on no other call gets in by the NIC's handle; calls that are in finish, or are told to, before anything goes.
 * The handle dies while we are still inside: whoever comes in after us finds it dead. VIPL leaves open what becomes of
 * objects that were not destroyed; programs of the time closed the NIC and went. So it takes all of them. */
VIP_RETURN VipCloseNic(VIP_NIC_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIP_RETURN code;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    /* The handler runs on the NIC's thread, which this call would wait for. */
    if (via_in_handler(nic)) {
        via_leave(nic);
        return via_fail(VIP_INVALID_STATE, "VipCloseNic: cannot be called from a handler of the NIC");
    }
    /* Now we are alone but for calls that hold a VI's or a queue's handle: they get in for a moment, see `closing`, and
     * leave. */
    via_engine_stop(nic);
    while (nic->vis) {
        /* Descriptors that were never taken back are given up: their memory is the program's. */
        struct via_vi *vi = nic->vis;
        via_disconnect(vi);
        vi->send.reaped = vi->send.posted;
        vi->recv.reaped = vi->recv.posted;
        via_vi_destroy(vi);
    }
    while (nic->cqs)
        via_cq_free(nic->cqs);
    via_conn_fini(nic);
    /* What was put off for want of room gets one more chance: a DISCONNECT among it saves the peer five seconds of
     * doubt. */
    via_send_deferred(nic);
    via_drop_deferred(nic, NULL);
    via_leave(nic);
    /* The tap's own thread writes the capture to its end, and may want to enter: outside, we cannot be in its way. */
    via_tap_end(nic);
    via_enter(nic);
    via_mem_fini(nic);
    nic->ops->close(nic->link);
    int inspectable = nic->inspectable;
    vk_store_relaxed(&nic->inspectable, 0);
    /* The handle dies while we are inside; whoever waits to come in finds it dead when we have left. */
    free_nic(nic);
    via_leave(nic);
    if (inspectable)
        via_inspect_end();
    return VIP_SUCCESS;
}

/* Attributes in VIPL's terms. LocalNicAddress points into the NIC and is good until it is closed. */
VIP_RETURN VipQueryNic(VIP_NIC_HANDLE handle, VIP_NIC_ATTRIBUTES *a)
{
    VIP_RETURN code;
    if (a == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipQueryNic: no place for the attributes (NULL)");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    memset(a, 0, sizeof *a);
    strcpy(a->Name, nic->name);
    a->HardwareVersion = WIRE_VERSION;
    a->ProviderVersion = VIAKIT_WIRE_VERSION;
    a->NicAddressLen = sizeof nic->limits.address;
    a->LocalNicAddress = nic->limits.address;
    a->ThreadSafe = VIP_TRUE;
    a->MaxDiscriminatorLen = WIRE_MAX_DISCRIMINATOR;
    /* No bound of our own: the system's memory is one. */
    a->MaxRegisterBytes = a->MaxRegisterBlockBytes = ~0ul >> 1;
    /* Index 0 of the region table and number 0 of the tags stay unused: 0 means "none". */
    a->MaxRegisterRegions = VIA_MAX_REGIONS - 1;
    a->MaxVI = VIA_MAX_VI;
    a->MaxDescriptorsPerQueue = VIA_MAX_QUEUE;
    a->MaxSegmentsPerDesc = VIA_MAX_SEGMENTS;
    a->MaxCQ = VIA_MAX_CQ;
    a->MaxCQEntries = VIA_MAX_CQ_ENTRIES;
    a->MaxTransferSize = VIA_MAX_TRANSFER;
    a->NativeMTU = nic->limits.max_payload;
    a->MaxPtags = VIA_MAX_PTAGS - 1;
    a->ReliabilityLevelSupport = VIA_ALL_LEVELS;
    a->RDMAReadSupport = VIA_RDMA_READ_LEVELS;
    via_leave(nic);
    return VIP_SUCCESS;
}

void via_nic_info(struct via_nic *nic, viakit_nic_info *info)
{
    /* The link adds what only it knows, and may correct the rest. */
    memset(info, 0, sizeof *info);
    strcpy(info->link, nic->ops->name);
    strcpy(info->device, nic->device);
    memcpy(info->address, nic->limits.address, sizeof info->address);
    info->port = nic->limits.port;
    info->mtu = nic->limits.mtu;
    info->max_payload = nic->limits.max_payload;
    info->super_payload = nic->limits.max_payload * nic->limits.max_batch;
    info->ring_slots = nic->limits.ring_slots;
    info->window = nic->options.window;
    info->bytes_registered = nic->bytes_registered;
    info->bytes_pinned = nic->bytes_pinned;
    info->lossless = nic->limits.lossless;
    info->cma = -1;
    info->thread = nic->has_thread;
    info->vis = (int)nic->n_vis;
    info->regions = (int)nic->n_regions;
    info->ptags = (int)nic->n_ptags;
    info->cqs = (int)nic->n_cqs;
    if (nic->ops->info)
        nic->ops->info(nic->link, info);
}

VIP_RETURN viakit_query_nic(VIP_NIC_HANDLE handle, viakit_nic_info *info)
{
    VIP_RETURN code;
    if (info == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "viakit_query_nic: no place for the information (NULL)");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    via_nic_info(nic, info);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* A VI's share of its NIC's counters. Frames are counted by the NIC itself, for some belong to no VI. */
void via_add_counters(uint64_t *sum, const struct via_vi *vi)
{
    for (int i = 0; i < VIAKIT_N_COUNTERS; i++)
        if (i != VIAKIT_COUNTER_frames_sent && i != VIAKIT_COUNTER_frames_received)
            sum[i] += vi->counters[i];
}

VIP_RETURN viakit_nic_counters(VIP_NIC_HANDLE handle, VIP_UINT64 *values)
{
    VIP_RETURN code;
    if (values == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "viakit_nic_counters: no place for the values (NULL)");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    /* A NIC's count is what it counted itself, what VIs that are gone left behind (free_vi), and what the living have
     * counted so far. */
    memcpy(values, nic->counters, sizeof nic->counters);
    for (const struct via_vi *vi = nic->vis; vi; vi = vi->next)
        via_add_counters(values, vi);
    values[VIAKIT_COUNTER_polls] = nic->polls;
    values[VIAKIT_COUNTER_lock_waits] = nic->own.waits;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* For tests and leak hunts: after the last close all of these are 0. Read without any lock, so of a moment that may
 * never have been. */
void viakit_live_objects(viakit_live *live)
{
    live->nics = vk_load_relaxed(&via_nic_pool.n_alive);
    live->vis = vk_load_relaxed(&via_vi_pool.n_alive);
    live->cqs = vk_load_relaxed(&via_cq_pool.n_alive);
    live->ptags = vk_load_relaxed(&via_ptag_pool.n_alive);
    live->connections = vk_load_relaxed(&via_conn_pool.n_alive);
    live->regions = vk_load_relaxed(&via_n_regions_live);
    live->allocations = vk_load_relaxed(&via_n_allocations_live);
}
