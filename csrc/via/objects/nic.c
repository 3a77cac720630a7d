/*
 * The NIC: opening by device name, closing with everything that is left, attributes and counters.
 *
 * In VIA a NIC is a card. Here it is a struct via_nic, a link (link/link.h: the wire below it) and, unless the program
 * disables it, a thread that drives it when no call does (engine.c). All other objects of a program belong to a NIC:
 * tags, regions, VIs, completion queues. VIPL lets a process open the same NIC several times. Here each opening is a
 * NIC of its own, with its own port on the wire, and NICs share nothing.
 *
 *    viakit_open_nic        find_device -> a free slot of the pool -> via_own_init -> set_up:
 *                           link open -> region table -> thread
 *    VipCloseNic            the same backwards; calls of other threads may arrive at any moment, see there
 *
 * The slots of NICs are never unmapped, and the fields before `ops` in a slot are never cleared (base/pool.h). A call
 * with the handle of a NIC that has just been closed can therefore still read the owner word, and then finds the handle
 * invalid.
 *
 * Any thread may call the functions of VIPL here. Opening and closing block: a link may create files and threads, and
 * closing waits until calls of other threads have left and the NIC's thread has ended. The other calls do not block.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/cancel.h"
#include "base/explain.h"
#include "base/pool.h"
#include "base/text.h"
#include "link/frame_format.h"
#include "link/link.h"
#include "via/connect/config.h"
#include "via/data/data.h"
#include "via/engine.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/link_services.h"
#include "via/mem.h"
#include "via/nic.h"
#include "via/objects/faults.h"
#include "via/observer.h"
#include "via/own.h"
#include "via/pending.h"
#include "via/vi.h"

/* At most 1024 NICs of a process. Slots keep what precedes `ops`. */
struct vk_pool via_nic_pool = VK_POOL_INIT(struct via_nic, 1024, ops);
int via_process_id;

/* A NIC belongs to the process that opened it. Its thread and its peers' connections do not survive a fork, and its
 * sockets are closed in the child (base/files.h). Each call compares nic->pid with this variable, which saves the
 * system call. */
static void child_of_fork(void)
{
    via_process_id = (int)getpid();
    /* A slot keeps its owner word when it is freed. At the fork, a thread that the child does not have may have held
     * the word: it was closing the NIC, or had entered by an old handle. The next NIC opened in this slot would wait
     * for that thread forever. In the child no thread is inside any NIC. */
    for (uint32_t i = 0; i < via_nic_pool.n_touched; i++)
        ((struct via_nic *)(void *)(via_nic_pool.base + i * via_nic_pool.stride))->own = (struct via_own){0};
}

__attribute__((constructor)) static void begin(void)
{
    via_process_id = (int)getpid();
    pthread_atfork(NULL, NULL, child_of_fork);
}

/* Fill in defaults and limit values that would not work. A program may have been compiled with an older viakit.h, whose
 * struct is shorter: `size` gives its length, and the missing fields get their defaults. A field of 0 also means the
 * default. */
static void settle_options(struct via_nic *nic, const viakit_nic_options *from)
{
    viakit_nic_options *to = &nic->options;
    memset(to, 0, sizeof *to);
    if (from)
        memcpy(to, from, from->size && from->size < sizeof *to ? from->size : sizeof *to);
    to->size = sizeof *to;
    nic->window_may_grow = to->window == 0;
#define DEFAULT(field, value) to->field = to->field ? to->field : (value)
    DEFAULT(window, 64);         /* link sends; settle_long_window() allows more where the wire is long */
    DEFAULT(rto_us, 10000);      /* a busy machine may delay a process by some milliseconds, which is no loss */
    DEFAULT(max_retries, 10);    /* with back-off 3.1 s, after keepalive_ms of silence; 5.5 s if replies were slow */
    DEFAULT(ack_delay_us, 200);  /* below rto_us by far: a delayed acknowledgement must cause no retransmission */
    DEFAULT(keepalive_ms, 1000); /* silence after which a peer with nothing outstanding is probed */
    DEFAULT(spin_us, 20);        /* then a waiting call sleeps */
#undef DEFAULT
    if (to->takeover_us != 0 && to->takeover_us < VIA_TAKEOVER_LEAST_US)
        to->takeover_us = VIA_TAKEOVER_LEAST_US;
    if (to->takeover_us > VIA_TAKEOVER_MOST_US)
        to->takeover_us = VIA_TAKEOVER_MOST_US;
    if (to->window > VIA_WINDOW)
        to->window = VIA_WINDOW;
}

/* Sets how far the window of a VI may grow over a long wire (reliable.c). The peer's ring is taken to be as large as
 * this NIC's, and a quarter of it stays free for other peers. flight_end[] must have space for the sends that have
 * arrived behind a gap, and the peer must be able to keep the frames of two windows out of order. A window that the
 * program or the link has limited does not grow. */
static void settle_long_window(struct via_nic *nic)
{
    const struct link_limits *l = &nic->limits;
    uint32_t most = l->frame_slots ? l->frame_slots : l->ring_slots, kept = VIA_REORDER_FRAMES / 2 / l->max_batch;
    most = most < VIA_FLIGHT ? most * 3 / 4 : VIA_FLIGHT * 3 / 4;
    most = most < kept ? most : kept;
    int grows = nic->window_may_grow && l->max_window == 0 && most > nic->options.window;
    nic->long_window = grows ? most : nic->options.window;
}

/* The installed watch (observer.h), or NULL. */
const struct via_watch *via_watch;

static const struct link_ops *const links[] = {
#define LINK_X(name) &link_##name,
    LINKS(LINK_X)
#undef LINK_X
};
#define N_LINKS (sizeof links / sizeof *links)

/* A device is the name of a link, alone or followed by ":rest". *rest is the part after the colon, which the link
 * interprets. */
static const struct link_ops *find_link(const char *device, const char **rest)
{
    for (size_t i = 0; i < N_LINKS; i++) {
        size_t n = strlen(links[i]->about.name);
        if (strncmp(device, links[i]->about.name, n) == 0 && (device[n] == 0 || device[n] == ':')) {
            *rest = device[n] ? device + n + 1 : "";
            return links[i];
        }
    }
    return NULL;
}

const viakit_link_info *viakit_link(int index)
{
    return index >= 0 && (size_t)index < N_LINKS ? &links[index]->about : NULL;
}

/* Write the device syntax of all links, for errors: "loop, loop:NAME, shm, shm:NAME or eth:INTERFACE". */
static const char *devices(char text[200])
{
    struct vk_text t = {text, 200, 0};
    for (size_t i = 0; i < N_LINKS; i++)
        vk_put(&t, "%s%s", i == 0 ? "" : i + 1 == N_LINKS ? " or " : ", ", links[i]->about.devices);
    return text;
}

/* Map a link's errno value to a code of VIPL: an invalid name is the caller's error, all else a lack of resources. VIPL
 * has no code for a missing privilege; errno keeps that (set_up). */
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

/* Free a NIC that is completely shut down. Its handle becomes invalid in the last step. */
static void free_nic(struct via_nic *nic)
{
    free(nic->vi_by_number);
    free(nic->events);
    free(nic->discovered);
    free(nic->hosts_file);
    vk_pool_put(&via_nic_pool, nic); /* last: another NIC may use the slot from now on */
}

/* Open the link and create the NIC's memory and thread. On failure nothing of that is left, except the slot. */
static VIP_RETURN set_up(struct via_nic *nic, const char *rest)
{
    /* Frames refer to VIs by number: rx.c looks them up here. */
    nic->vi_by_number = calloc(VIA_MAX_VI, sizeof(struct via_vi *));
    nic->events = calloc(VIA_MAX_EVENTS, sizeof *nic->events);
    if (nic->vi_by_number == NULL || nic->events == NULL)
        return via_no_memory("VipOpenNic");
    vk_fail_text(VIP_SUCCESS, ""); /* clear it: links explain their own errors */
    nic->link_client = (struct link_client){.services = &via_link_services, .counters = nic->counters};
    int error = nic->ops->open(&nic->link_client, rest, &nic->options, &nic->link, &nic->limits);
    if (error) {
        if (*viakit_last_error() == '\0') /* no explanation from the link */
            vk_explain("VipOpenNic: %s: %s", nic->device, strerror(-error));
        errno = -error; /* stays set: a caller can distinguish "not permitted" from "not present" */
        return code_of(error);
    }
    /* The link has reported its limits. The provider's own may be lower: a batch is built on the stack (tx.c). */
    nic->checksum = nic->limits.checksum;
    nic->whole_message = via_whole_message(nic);
    if (nic->limits.max_batch > VIA_BATCH)
        nic->limits.max_batch = VIA_BATCH;
    if (nic->limits.max_window && nic->options.window > nic->limits.max_window)
        nic->options.window = nic->limits.max_window;
    settle_long_window(nic);
    error = via_mem_init(nic);
    if (error == 0) {
        error = via_engine_start(nic);
        if (error)
            via_mem_fini(nic);
    }
    if (error) {
        nic->ops->close(nic->link);
        return vk_fail(VIP_ERROR_RESOURCE, "VipOpenNic: %s", strerror(-error));
    }
    return VIP_SUCCESS;
}

/* Resolve a device name to the device and its link. The name is a link's own, or an alias from the configuration or
 * built in (config.h). *rest points into `real`. */
static VIP_RETURN find_device(const char *name, char real[64], const struct link_ops **ops, const char **rest)
{
    char device[128], where[300];
    if (config_device(name, device, sizeof device, where, sizeof where) < 0)
        return VIP_INVALID_PARAMETER; /* explained, with file and line */
    *ops = strlen(device) < 64 ? find_link(strcpy(real, device), rest) : NULL;
    char known[200];
    if (*ops)
        return VIP_SUCCESS;
    if (*where)
        return vk_fail(VIP_INVALID_PARAMETER, "device '%.64s' is '%.64s' by %.200s, which is no device: give %s", name,
                       device, where, devices(known));
    return vk_fail(VIP_INVALID_PARAMETER,
                   "no device '%.64s': give %s, or a name that VIAKIT_DEVICES or viakit.conf gives to one of these",
                   name, devices(known));
}

const viakit_link_info *viakit_link_of(const char *device)
{
    const struct link_ops *ops;
    const char *rest;
    char real[64];
    if (device == NULL) {
        vk_fail_text(VIP_INVALID_PARAMETER, "viakit_link_of: a device name is needed (NULL)");
        return NULL;
    }
    return find_device(device, real, &ops, &rest) == VIP_SUCCESS ? &ops->about : NULL;
}

/* Open a NIC. A failure leaves nothing behind: everything made so far is undone in reverse order. */
VIP_RETURN viakit_open_nic(const char *device, const viakit_nic_options *options, VIP_NIC_HANDLE *out)
{
    VK_HOLD_CANCEL;
    const char *rest = "";
    if (device == NULL || out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipOpenNic: a device name and a place for the handle are needed (NULL)");
    const struct link_ops *ops;
    char real[sizeof((struct via_nic *)0)->device];
    VIP_RETURN code = find_device(device, real, &ops, &rest);
    if (code)
        return code;
    /* From here on other threads may read the slot through an old handle. The fields that they read before they enter
     * (pid, own) are written by atomic stores, and via_own_init waits until no thread is inside. */
    struct via_nic *nic = vk_pool_get(&via_nic_pool);
    if (nic == NULL)
        return via_no_object("VipOpenNic", &via_nic_pool, "NICs");
    nic->ops = ops;
    vk_store_relaxed(&nic->pid, via_process_id);
    strcpy(nic->device, real);
    snprintf(nic->name, sizeof nic->name, "%s", device);
    settle_options(nic, options);
    via_own_init(&nic->own);
    code = set_up(nic, rest);
    if (code) {
        free_nic(nic);
        return code;
    }
    /* VIAKIT_FAULT and VIAKIT_TAP inject faults into an old program, or trace it, without a change to it. */
    code = via_faults_from_environment(nic);
    if (code == VIP_SUCCESS && via_watch)
        code = via_watch->nic_opened(nic);
    if (code) {
        VipCloseNic(vk_pool_handle(nic));
        return code;
    }
    /* Results are set only on success. The inspector sees the NIC only now, when it is complete. */
    *out = vk_pool_handle(nic);
    if (via_watch)
        via_watch->nic_visible(nic);
    return VIP_SUCCESS;
}

/* VIPL's own call: every option has its default. */
VIP_RETURN VipOpenNic(const VIP_CHAR *device, VIP_NIC_HANDLE *out)
{
    return viakit_open_nic(device, NULL, out);
}

/* Close the NIC and everything that the program left, in order: connections, VIs, queues, regions, tags, link. From the
 * start no other call enters by the NIC's handle. Calls that are inside finish or are ended before anything is freed.
 * The handle becomes invalid while this call is still inside, so later calls find it invalid. VIPL does not define what
 * happens to objects that were not destroyed. Early programs closed the NIC and exited, so this call destroys all of
 * them. */
VIP_RETURN VipCloseNic(VIP_NIC_HANDLE handle)
{
    VK_HOLD_CANCEL;
    VIA_ENTER_NIC(nic, handle);
    /* A handler runs on the NIC's thread, and this call would wait for that thread. */
    if (via_in_handler(nic)) {
        via_leave(nic);
        return vk_fail(VIP_INVALID_STATE, "VipCloseNic: cannot be called from a handler of the NIC");
    }
    /* Only calls with the handle of a VI or a queue can still enter. They see `closing` and leave. */
    via_engine_stop(nic);
    while (nic->vis) {
        /* Descriptors that were never reaped are discarded: their memory belongs to the program. */
        struct via_vi *vi = nic->vis;
        via_disconnect(vi);
        vi->send.reaped = vi->send.posted;
        vi->recv.reaped = vi->recv.posted;
        via_vi_destroy(vi);
    }
    while (nic->cqs)
        via_cq_free(nic->cqs);
    via_conn_fini(nic);
    /* Frames deferred for lack of room get one more chance: a DISCONNECT among them saves the peer a five-second
     * time-out. */
    via_send_deferred(nic);
    via_drop_deferred(nic, NULL);
    via_leave(nic);
    /* The tap's own thread completes the capture file and may need to enter, so the NIC is left here. */
    if (via_watch)
        via_watch->nic_closing(nic);
    via_enter(nic);
    via_mem_fini(nic);
    nic->ops->close(nic->link);
    int inspectable = nic->inspectable;
    vk_store_relaxed(&nic->inspectable, 0);
    /* The handle becomes invalid while this call is inside. Threads that wait to enter find that out afterwards. */
    free_nic(nic);
    via_leave(nic);
    if (inspectable && via_watch)
        via_watch->nic_closed();
    return VIP_SUCCESS;
}

/* Return the attributes in VIPL's terms. LocalNicAddress points into the NIC and is valid until it is closed. */
VIP_RETURN VipQueryNic(VIP_NIC_HANDLE handle, VIP_NIC_ATTRIBUTES *a)
{
    if (a == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipQueryNic: no place for the attributes (NULL)");
    VIA_ENTER_NIC(nic, handle);
    memset(a, 0, sizeof *a);
    strcpy(a->Name, nic->name);
    a->HardwareVersion = WIRE_VERSION;
    a->ProviderVersion = VIAKIT_WIRE_VERSION;
    a->NicAddressLen = sizeof nic->limits.address;
    a->LocalNicAddress = nic->limits.address;
    a->ThreadSafe = VIP_TRUE;
    a->MaxDiscriminatorLen = WIRE_MAX_DISCRIMINATOR;
    /* The only bound is the system's memory. */
    a->MaxRegisterBytes = a->MaxRegisterBlockBytes = ~0ul >> 1;
    /* Index 0 of the region table and tag number 0 stay unused: 0 means "none". */
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

/* Fills all fields, as owner. viakit_query_nic and snapshots use it. */
void via_nic_info(struct via_nic *nic, viakit_nic_info *info)
{
    /* The link adds its own values at the end and may correct the others. */
    memset(info, 0, sizeof *info);
    strcpy(info->link, nic->ops->about.name);
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
    info->lossless = nic->ops->about.lossless;
    info->cma = -1;
    info->thread = nic->has_thread;
    snprintf(info->trouble, sizeof info->trouble, "%s", nic->trouble);
    info->vis = (int)nic->n_vis;
    info->regions = (int)nic->n_regions;
    info->ptags = (int)nic->n_ptags;
    info->cqs = (int)nic->n_cqs;
    if (nic->ops->info)
        nic->ops->info(nic->link, info);
}

VIP_RETURN viakit_query_nic(VIP_NIC_HANDLE handle, viakit_nic_info *info)
{
    if (info == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_query_nic: no place for the information (NULL)");
    VIA_ENTER_NIC(nic, handle);
    via_nic_info(nic, info);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Add a VI's share of its NIC's counters. The NIC itself counts frames, because some belong to no VI. */
void via_add_counters(uint64_t *sum, const struct via_vi *vi)
{
    for (int i = 0; i < VIAKIT_N_COUNTERS; i++)
        if (i != VIAKIT_COUNTER_frames_sent && i != VIAKIT_COUNTER_frames_received)
            sum[i] += vi->counters[i];
}

/* values has room for VIAKIT_N_COUNTERS numbers. They belong to one moment, because the caller is the owner. */
VIP_RETURN viakit_nic_counters(VIP_NIC_HANDLE handle, VIP_UINT64 *values)
{
    if (values == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "viakit_nic_counters: no place for the values (NULL)");
    VIA_ENTER_NIC(nic, handle);
    /* The sum of the NIC's own counts, those left by destroyed VIs (free_vi), and those of the live VIs. */
    memcpy(values, nic->counters, sizeof nic->counters);
    for (const struct via_vi *vi = nic->vis; vi; vi = vi->next)
        via_add_counters(values, vi);
    values[VIAKIT_COUNTER_polls] = nic->polls;
    values[VIAKIT_COUNTER_lock_waits] = nic->own.waits;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* For tests and leak detection: after the last close all of these are 0. They are read without a lock, so the values
 * need not belong to one moment. */
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
