/*
 * endpoint.c - tools for both sides of a case: the control channel, one VI with guarded memory, descriptors, patterns.
 *
 * The control channel is a socket pair beside the link: numbers and syncs on it prove nothing about the link and order
 * nothing on it. They only let a side go on. All functions here fail the test themselves, so cases need not check
 * results.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <errno.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "harness.h"

/* ---------------------------------------------------------------- the control channel */

void side_send(side *s, const void *data, size_t len)
{
    const char *p = data;
    while (len) {
        ssize_t n = send(s->ctl, p, len, MSG_NOSIGNAL);
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            FAIL("the other side has ended");
        p += n;
        len -= (size_t)n;
    }
}

/* While one side waits here its NIC's own thread makes the progress; without a thread, this loop does. */
void side_recv(side *s, void *data, size_t len)
{
    char *p = data;
    while (len) {
        ssize_t n = recv(s->ctl, p, len, s->options.no_thread ? MSG_DONTWAIT : 0);
        if (n < 0 && errno == EAGAIN) {
            if (s->nic)
                viakit_poll(s->nic, NULL);
            sched_yield();
            continue;
        }
        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            FAIL("the other side has ended");
        p += n;
        len -= (size_t)n;
    }
}

uint64_t side_exchange(side *s, uint64_t own)
{
    uint64_t peer_value;
    side_send(s, &own, sizeof(own));
    side_recv(s, &peer_value, sizeof(peer_value));
    return peer_value;
}

/* The mark in the upper half distinguishes a sync from a number that a side exchanges at the same time by mistake. */
void side_sync_at(side *s, int tag)
{
    uint64_t peer_value = side_exchange(s, 0x5af3ull << 32 | (uint32_t)tag);
    if (peer_value != (0x5af3ull << 32 | (uint32_t)tag))
        FAIL("the sides are out of step: this one at %d, the other at %d", tag, (int)(uint32_t)peer_value);
}

/* ---------------------------------------------------------------- addresses */

/* VIPL's layout: two lengths of 16 bits, the host's address, and the discriminator right behind it. */
VIP_NET_ADDRESS *make_address(address *a, const uint8_t host[6], const void *discriminator, size_t len)
{
    memset(a, 0, sizeof(*a));
    a->net.HostAddressLen = 6;
    a->net.DiscriminatorLen = (VIP_UINT16)len;
    memcpy(a->room + 4, host, 6);
    memcpy(a->room + 10, discriminator, len);
    return &a->net;
}

void add_port(address *a, uint16_t port)
{
    uint8_t *p = (uint8_t *)a->net.HostAddress;
    memmove(p + VIAKIT_NIC_ADDRESS_LEN, p + 6, a->net.DiscriminatorLen);
    memcpy(p + 6, &port, sizeof(port));
    a->net.HostAddressLen = VIAKIT_NIC_ADDRESS_LEN;
}

/* ---------------------------------------------------------------- endpoints */

void endpoint_open_with(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, size_t size, size_t max_transfer,
                        VIP_CQ_HANDLE send_cq, VIP_CQ_HANDLE recv_cq)
{
    VIP_MEM_ATTRIBUTES mem_attr = {0};
    memset(e, 0, sizeof(*e));
    e->s = s;
    /* Room for descriptors and guards beside the buffers that the case requested. */
    e->size = (size + 65536 + 4095) & ~(size_t)4095;
    CHECK_OK(VipCreatePtag(s->nic, &e->ptag));
    if (s->link->mapped) {
        void *p;
        CHECK_OK(viakit_alloc(s->nic, e->size, &p));
        e->mem = p;
    } else {
        e->mem = mmap(NULL, e->size, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        CHECK(e->mem != MAP_FAILED);
    }
    mem_attr.Ptag = e->ptag;
    mem_attr.EnableRdmaWrite = VIP_TRUE;
    CHECK_OK(VipRegisterMem(s->nic, e->mem, e->size, &mem_attr, &e->mh));
    e->attr.ReliabilityLevel = level;
    e->attr.MaxTransferSize = max_transfer;
    e->attr.Ptag = e->ptag;
    e->attr.EnableRdmaWrite = VIP_TRUE;
    CHECK_OK(VipCreateVi(s->nic, &e->attr, send_cq, recv_cq, &e->vi));
}

void endpoint_open(endpoint *e, side *s, VIP_RELIABILITY_LEVEL level, size_t size)
{
    endpoint_open_with(e, s, level, size, 0, NULL, NULL);
}

void endpoint_close(endpoint *e)
{
    /* On a VI that is IDLE already this does nothing, so cases may leave the disconnecting to this. */
    CHECK_OK(VipDisconnect(e->vi));
    drain(e->vi);
    CHECK_OK(VipDestroyVi(e->vi));
    check_guards(e);
    CHECK_OK(VipDeregisterMem(e->s->nic, e->mem, e->mh));
    CHECK_OK(VipDestroyPtag(e->s->nic, e->ptag));
    if (e->s->link->mapped)
        CHECK_OK(viakit_free(e->s->nic, e->mem));
    else
        munmap(e->mem, e->size);
    free(e->buffers);
    memset(e, 0, sizeof(*e));
}

/* A requests, B waits. The roles are fixed, so that no case has two servers or two clients. */
static void connect_as_client(endpoint *e, const char *discriminator)
{
    side *s = e->s;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r;
    double end = check_now() + CHECK_WAIT_S;
    make_address(&local, s->attr.LocalNicAddress, discriminator, strlen(discriminator));
    make_address(&remote, s->peer_host, discriminator, strlen(discriminator));
    /* The server may not wait yet. Clients of 2001 requested again, too. */
    while ((r = VipConnectRequest(e->vi, &local.net, &remote.net, 5000 * CHECK_SLOWER, &attr)) == VIP_NO_MATCH &&
           check_now() < end)
        sched_yield();
    CHECK_RET(r, VIP_SUCCESS);
    CHECK_EQ(attr.ReliabilityLevel, e->attr.ReliabilityLevel);
}

void endpoint_accept(endpoint *e, const char *discriminator)
{
    side *s = e->s;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    make_address(&local, s->attr.LocalNicAddress, discriminator, strlen(discriminator));
    CHECK_OK(VipConnectWait(s->nic, &local.net, 1000 * CHECK_WAIT_S, &remote.net, &attr, &conn));
    CHECK_EQ(attr.ReliabilityLevel, e->attr.ReliabilityLevel);
    CHECK_OK(VipConnectAccept(conn, e->vi));
}

void endpoint_connect(endpoint *e, const char *discriminator)
{
    if (e->s->role == SIDE_A)
        connect_as_client(e, discriminator);
    else
        endpoint_accept(e, discriminator);
    /* CONNECTED, unless what the other side did at once has broken the connection already. */
    CHECK(vi_state(e->vi) == VIP_STATE_CONNECTED || vi_state(e->vi) == VIP_STATE_ERROR);
}

void endpoint_disconnect(endpoint *e)
{
    /* Tags that no case uses. Without the first sync one side's Disconnect would break what the other is still doing.
     * Without the second a side could connect again to a partner that is not IDLE yet. */
    SIDE_SYNC(e->s, 9001);
    CHECK_OK(VipDisconnect(e->vi));
    CHECK_EQ(vi_state(e->vi), VIP_STATE_IDLE);
    drain(e->vi);
    SIDE_SYNC(e->s, 9002);
}

VIP_VI_STATE vi_state(VIP_VI_HANDLE vi)
{
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attr;
    VIP_BOOLEAN send_empty, recv_empty;
    CHECK_OK(VipQueryVi(vi, &state, &attr, &send_empty, &recv_empty));
    return state;
}

/* For changes without a notification: the effect of the other side's call arrives later, and only the state shows
 * it. */
void wait_state(endpoint *e, VIP_VI_STATE state)
{
    double end = check_now() + CHECK_WAIT_S;
    while (vi_state(e->vi) != state) {
        if (check_now() > end)
            FAIL("the VI is in %s, expected %s", viakit_state_name(vi_state(e->vi)), viakit_state_name(state));
        if (e->s->options.no_thread)
            viakit_poll(e->s->nic, NULL);
        sched_yield();
    }
}

/* An empty queue answers DESCRIPTOR_ERROR and no descriptor; a failed descriptor the same code, with it. */
static int drain_queue(VIP_VI_HANDLE vi, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **))
{
    double end = check_now() + CHECK_WAIT_S;
    int n = 0;
    for (;;) {
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN r = done(vi, &d);
        if (r == VIP_DESCRIPTOR_ERROR && !d)
            return n;
        if (r == VIP_NOT_DONE) {
            if (check_now() > end)
                FAIL("a descriptor stays on its queue");
            sched_yield();
            continue;
        }
        CHECK(r == VIP_SUCCESS || r == VIP_DESCRIPTOR_ERROR);
        CHECK(d && (d->CS.Status & VIP_STATUS_DONE));
        n++;
    }
}

/* Both queues of a VI that is not connected: all that is left on them is done, so none may answer NOT_DONE for long. */
int drain(VIP_VI_HANDLE vi)
{
    int n = drain_queue(vi, VipSendDone);
    return n + drain_queue(vi, VipRecvDone);
}

/* ---------------------------------------------------------------- guarded memory */

/* Everything that is handed out stands between two guards; nothing is given back before the region itself. */
static uint8_t *carve(endpoint *e, size_t len)
{
    size_t start = (e->used + 63) & ~(size_t)63;
    uint8_t *p = e->mem + start + GUARD;
    if (start + len + 2 * GUARD > e->size)
        FAIL("the test's region is too small: %zu of %zu bytes used, %zu more wanted", e->used, e->size, len);
    e->used = start + len + 2 * GUARD;
    memset(p - GUARD, 0xA5, GUARD);
    memset(p + len, 0xA5, GUARD);
    if (e->n_buffers == e->max_buffers) {
        e->max_buffers = e->max_buffers ? 2 * e->max_buffers : 64;
        e->buffers = realloc(e->buffers, e->max_buffers * sizeof(*e->buffers));
        CHECK(e->buffers != NULL);
    }
    e->buffers[e->n_buffers].start = p;
    e->buffers[e->n_buffers++].len = len;
    return p;
}

/* Filled with 0xEE, so that a byte that was not written is recognised by its value. Data to send has another. */
uint8_t *buffer(endpoint *e, size_t len)
{
    uint8_t *p = carve(e, len);
    memset(p, 0xEE, len);
    return p;
}

VIP_DESCRIPTOR *descriptor(endpoint *e, unsigned n_segments)
{
    size_t len = sizeof(VIP_CONTROL_SEGMENT) + n_segments * sizeof(VIP_DESCRIPTOR_SEGMENT);
    /* The provider may read a whole VIP_DESCRIPTOR, even if fewer segments are used. */
    uint8_t *p = carve(e, len < sizeof(VIP_DESCRIPTOR) ? sizeof(VIP_DESCRIPTOR) : len);
    memset(p, 0, len < sizeof(VIP_DESCRIPTOR) ? sizeof(VIP_DESCRIPTOR) : len);
    return (VIP_DESCRIPTOR *)(void *)p;
}

void check_guards(endpoint *e)
{
    for (size_t i = 0; i < e->n_buffers; i++) {
        const uint8_t *start = e->buffers[i].start, *end = start + e->buffers[i].len, *before = start - GUARD;
        for (size_t k = 0; k < GUARD; k++) {
            if (before[k] != 0xA5)
                FAIL("guard byte %zu before a buffer of %zu bytes is 0x%02x", k, e->buffers[i].len, before[k]);
            if (end[k] != 0xA5)
                FAIL("guard byte %zu after a buffer of %zu bytes is 0x%02x", k, e->buffers[i].len, end[k]);
        }
    }
}

/* ---------------------------------------------------------------- descriptors */

VIP_DESCRIPTOR *prep_send(endpoint *e, VIP_DESCRIPTOR *d, const void *data, size_t len)
{
    memset(d, 0, sizeof(*d));
    d->CS.Control = VIP_CONTROL_OP_SENDRECV;
    d->CS.SegCount = 1;
    d->CS.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = (void *)(uintptr_t)data;
    d->DS[0].Local.Handle = e->mh;
    d->DS[0].Local.Length = (VIP_UINT32)len;
    return d;
}

VIP_DESCRIPTOR *prep_recv(endpoint *e, VIP_DESCRIPTOR *d, void *data, size_t len)
{
    return prep_send(e, d, data, len);
}

/* The address segment comes first, as VIPL wants it of RDMA, and is one of the two that are counted. */
VIP_DESCRIPTOR *prep_write(endpoint *e, VIP_DESCRIPTOR *d, const void *data, size_t len, uint64_t remote,
                           VIP_MEM_HANDLE handle)
{
    memset(d, 0, sizeof(*d));
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    d->CS.SegCount = 2;
    d->CS.Length = (VIP_UINT32)len;
    d->DS[0].Remote.Data.AddressBits = remote;
    d->DS[0].Remote.Handle = handle;
    d->DS[1].Local.Data.Address = (void *)(uintptr_t)data;
    d->DS[1].Local.Handle = e->mh;
    d->DS[1].Local.Length = (VIP_UINT32)len;
    return d;
}

void post_send(endpoint *e, VIP_DESCRIPTOR *d)
{
    CHECK_OK(VipPostSend(e->vi, d, e->mh));
}

void post_recv(endpoint *e, VIP_DESCRIPTOR *d)
{
    CHECK_OK(VipPostRecv(e->vi, d, e->mh));
}

/* The head of a queue, completed. The return value and the status must agree: an error, or none. */
static VIP_DESCRIPTOR *next(VIP_VI_HANDLE vi, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **), const char *queue)
{
    double end = check_now() + CHECK_WAIT_S;
    for (unsigned spins = 1;; spins++) {
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN r = done(vi, &d);
        if (r == VIP_NOT_DONE) {
            if (check_now() > end)
                FAIL("nothing completed on the %s queue in %d s", queue, CHECK_WAIT_S);
            /* A machine of few cores must let the other side run. */
            if (spins % 64 == 0)
                sched_yield();
            continue;
        }
        if (r == VIP_DESCRIPTOR_ERROR && !d)
            FAIL("the %s queue is empty", queue);
        CHECK(r == VIP_SUCCESS || r == VIP_DESCRIPTOR_ERROR);
        CHECK(d != NULL);
        if ((r == VIP_DESCRIPTOR_ERROR) != !!(d->CS.Status & VIP_STATUS_ERROR_MASK))
            FAIL("the %s queue gave %s and a descriptor of status 0x%x", queue, check_return_name(r), d->CS.Status);
        return d;
    }
}

VIP_DESCRIPTOR *next_send(endpoint *e)
{
    return next(e->vi, VipSendDone, "send");
}

VIP_DESCRIPTOR *next_recv(endpoint *e)
{
    return next(e->vi, VipRecvDone, "receive");
}

void reap_send(endpoint *e, VIP_DESCRIPTOR *d, uint32_t status)
{
    VIP_DESCRIPTOR *got = next_send(e);
    CHECK(got == d);
    CHECK_STATUS(got, status | VIP_STATUS_DONE);
}

void reap_recv(endpoint *e, VIP_DESCRIPTOR *d, uint32_t status)
{
    VIP_DESCRIPTOR *got = next_recv(e);
    CHECK(got == d);
    CHECK_STATUS(got, status | VIP_STATUS_DONE);
}

/* ---------------------------------------------------------------- data */

uint64_t random_next(uint64_t *state)
{
    /* splitmix64: every seed gives a sequence of its own, and near seeds give unlike ones. */
    uint64_t z = (*state += 0x9E3779B97F4A7C15ull);
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

void pattern_fill(void *data, size_t len, uint64_t seed)
{
    uint8_t *p = data;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = random_next(&seed);
        memcpy(p + i, &word, len - i < 8 ? len - i : 8);
    }
}

/* Words of 8 bytes are computed again and compared, so a check needs no second copy of a large message. The seed
 * distinguishes messages: the right bytes of another message fail as well. */
void pattern_check(const void *data, size_t len, uint64_t seed)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i += 8) {
        uint64_t word = random_next(&seed);
        size_t n = len - i < 8 ? len - i : 8;
        if (memcmp(p + i, &word, n))
            FAIL("data differ in bytes %zu..%zu of %zu", i, i + n - 1, len);
    }
}

int error_count(side *s, VIP_ERROR_CODE code)
{
    return atomic_load_explicit(&s->errors[code], memory_order_acquire);
}

/* Asynchronous errors come by the NIC's handler, from whichever thread makes the progress. */
void wait_error(side *s, VIP_ERROR_CODE code, int count)
{
    double end = check_now() + CHECK_WAIT_S;
    while (error_count(s, code) < count) {
        if (check_now() > end)
            FAIL("%s was reported %d times in %d s, expected %d", viakit_error_code_name(code), error_count(s, code),
                 CHECK_WAIT_S, count);
        if (s->options.no_thread)
            viakit_poll(s->nic, NULL);
        sched_yield();
    }
}

uint64_t nic_counter(side *s, viakit_counter counter)
{
    VIP_UINT64 values[VIAKIT_N_COUNTERS];
    CHECK_OK(viakit_nic_counters(s->nic, values));
    return values[counter];
}

/* Found by the thread's name. 'S' is the kernel's word for a sleep that a signal ends. */
int nic_thread_sleeps(void)
{
    struct dirent *entry;
    int sleeps = 0;
    DIR *tasks = opendir("/proc/self/task");
    CHECK(tasks != NULL);
    while ((entry = readdir(tasks)) != NULL) {
        char path[300], name[32] = "", state = 0;
        snprintf(path, sizeof(path), "/proc/self/task/%s/stat", entry->d_name);
        FILE *f = fopen(path, "re");
        if (f == NULL)
            continue;
        if (fscanf(f, "%*d (%31[^)]) %c", name, &state) == 2 && strcmp(name, "viakit-nic") == 0)
            sleeps = state == 'S';
        fclose(f);
    }
    closedir(tasks);
    return sleeps;
}
