/* The NIC: opening by device name, closing whatever is left, attributes, counters, and what this provider does not offer. */
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

static void child_of_fork(void)
{
    via_process_id = (int)getpid();
}

__attribute__((constructor)) static void begin(void)
{
    via_process_id = (int)getpid();
    pthread_atfork(NULL, NULL, child_of_fork);
}

/* Fills in defaults, bounds what would not work. */
static void settle_options(viakit_nic_options *to, const viakit_nic_options *from)
{
    memset(to, 0, sizeof *to);
    if (from)
        memcpy(to, from, from->size && from->size < sizeof *to ? from->size : sizeof *to);
    to->size = sizeof *to;
#define DEFAULT(field, value) to->field = to->field ? to->field : (value)
    DEFAULT(window, 64);
    DEFAULT(rto_us, 10000);   /* a busy machine lets a process wait for some milliseconds: that is no loss */
    DEFAULT(max_retries, 10); /* with back-off 3.1 s; after keepalive_ms of silence: a dead peer is known within 5 s */
    DEFAULT(ack_delay_us, 200);
    DEFAULT(keepalive_ms, 1000);
    DEFAULT(spin_us, 20);
#undef DEFAULT
    if (to->window > VIA_FLIGHT - 1)
        to->window = VIA_FLIGHT - 1;
}

static const struct link_ops *find_link(const char *device, const char **rest)
{
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

static void free_nic(struct via_nic *nic)
{
    free(nic->vi_by_number);
    free(nic->events);
    free(nic->discovered);
    free(nic->hosts_file);
    vk_pool_put(&via_nic_pool, nic); /* the last thing: then the next one may have the slot */
}

static VIP_RETURN set_up(struct via_nic *nic, const char *rest)
{
    nic->vi_by_number = calloc(VIA_MAX_VI, sizeof(struct via_vi *));
    nic->events = calloc(VIA_MAX_EVENTS, sizeof *nic->events);
    if (nic->vi_by_number == NULL || nic->events == NULL)
        return via_fail(VIP_ERROR_RESOURCE, "VipOpenNic: memory is exhausted");
    int error = nic->ops->open(nic, rest, &nic->options, &nic->link, &nic->limits);
    if (error) {
        errno = -error;        /* stays: a caller can tell "not allowed" from "not there" */
        return code_of(error); /* the link has explained */
    }
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

/* The device and its link behind the name that a program gives: a link's own name, or one that the user, or history, has given to
 * a device (config.h). rest points into `real`. */
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

VIP_RETURN viakit_open_nic(const char *device, const viakit_nic_options *options, VIP_NIC_HANDLE *out)
{
    const char *rest = "";
    if (device == NULL || out == NULL)
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipOpenNic: a device name and a place for the handle are needed (NULL)");
    const struct link_ops *ops;
    char real[sizeof((struct via_nic *)0)->device];
    VIP_RETURN code = find_device(device, real, &ops, &rest);
    if (code)
        return code;
    struct via_nic *nic = vk_pool_get(&via_nic_pool);
    if (nic == NULL)
        return via_fail(VIP_ERROR_RESOURCE, "VipOpenNic: too many NICs are open in this process");
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
    code = via_faults_from_environment(nic);
    if (code == VIP_SUCCESS)
        code = via_tap_from_environment(nic);
    if (code) {
        VipCloseNic(vk_pool_handle(nic));
        return code;
    }
    *out = vk_pool_handle(nic);
    via_inspect_begin(nic);
    return VIP_SUCCESS;
}

VIP_RETURN VipOpenNic(const VIP_CHAR *device, VIP_NIC_HANDLE *out)
{
    return viakit_open_nic(device, NULL, out);
}

/* Everything that the program left is closed in order: connections, VIs, queues, regions, tags, link. From the first moment
 * on no other call gets in by the NIC's handle; calls that are in finish, or are told to, before anything goes. The handle
 * dies while we are still inside: whoever comes in after us finds it dead. */
VIP_RETURN VipCloseNic(VIP_NIC_HANDLE handle)
{
    VIP_RETURN code;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    if (via_in_handler == nic) {
        via_leave(nic);
        return via_fail(VIP_INVALID_STATE, "VipCloseNic: cannot be called from a handler of the NIC");
    }
    via_engine_stop(nic);
    while (nic->vis) {
        struct via_vi *vi = nic->vis;
        via_disconnect(vi);
        vi->send.reaped = vi->send.posted;
        vi->recv.reaped = vi->recv.posted;
        via_vi_destroy(vi);
    }
    while (nic->cqs)
        via_cq_free(nic->cqs);
    via_conn_fini(nic);
    via_send_deferred(nic);
    via_drop_deferred(nic, NULL);
    via_leave(nic);
    via_tap_end(nic);
    via_enter(nic);
    via_mem_fini(nic);
    nic->ops->close(nic->link);
    int inspectable = nic->inspectable;
    vk_store_relaxed(&nic->inspectable, 0);
    free_nic(nic);
    via_leave(nic);
    if (inspectable)
        via_inspect_end();
    return VIP_SUCCESS;
}

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
    a->MaxRegisterBytes = a->MaxRegisterBlockBytes = ~0ul >> 1;
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
    memcpy(values, nic->counters, sizeof nic->counters);
    for (const struct via_vi *vi = nic->vis; vi; vi = vi->next)
        via_add_counters(values, vi);
    values[VIAKIT_COUNTER_polls] = nic->polls;
    values[VIAKIT_COUNTER_lock_waits] = nic->own.waits;
    via_leave(nic);
    return VIP_SUCCESS;
}

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
