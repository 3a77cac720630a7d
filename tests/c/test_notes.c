/*
 * test_notes.c - behaviour that programs of 2001 rely on beyond the text of the guide: the notes at the end of the
 * interface's description, by number.
 *
 * Some have tests elsewhere: note 1 in header_c89.c and header_cpp.cpp, 2 in test_calls.c (devices), 6 in the cases
 * peer_killed and close_with_everything and in the tests of the library's symbols, 11 in the case rdma_spin. Each note
 * is a habit found in programs or papers. The guide alone would allow a provider to break them.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>

#include "address.h"
#include "check.h"

/* A NIC with a page of memory, registered without attributes, and two VIs that are connected with each other. */
typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attr;
    uint8_t *mem;
    VIP_MEM_HANDLE mh;
    VIP_VI_HANDLE a, b;
} pair;

static void open_pair(pair *p, VIP_RELIABILITY_LEVEL level, int rdma_write)
{
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = level, .EnableRdmaWrite = rdma_write};
    address x, y;
    CHECK_OK(VipOpenNic("loop:notes", &p->nic));
    CHECK_OK(VipQueryNic(p->nic, &p->attr));
    p->mem = mmap(NULL, 65536, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p->mem != MAP_FAILED);
    CHECK_OK(VipRegisterMem(p->nic, p->mem, 65536, NULL, &p->mh)); /* note 4: NULL attributes are accepted */
    CHECK_OK(VipCreateVi(p->nic, &attr, NULL, NULL, &p->a));       /* note 4: and a NULL tag */
    CHECK_OK(VipCreateVi(p->nic, &attr, NULL, NULL, &p->b));
    memset(&x, 0, sizeof(x));
    x.net.HostAddressLen = 6;
    x.net.DiscriminatorLen = 1;
    memcpy(x.room + 4, p->attr.LocalNicAddress, 6);
    y = x;
    x.room[10] = 'x';
    y.room[10] = 'y';
    CHECK_OK(VipConnectPeerRequest(p->a, &x.net, &y.net, 1000 * CHECK_WAIT_S));
    CHECK_OK(VipConnectPeerRequest(p->b, &y.net, &x.net, 1000 * CHECK_WAIT_S));
    CHECK_OK(VipConnectPeerWait(p->a, NULL));
    CHECK_OK(VipConnectPeerWait(p->b, NULL));
}

static void close_pair(pair *p)
{
    CHECK_OK(VipCloseNic(p->nic));
    munmap(p->mem, 65536);
    CHECK_NOTHING_LEFT();
}

/* A descriptor at the byte `at` of the memory, for len bytes right behind it. */
static VIP_DESCRIPTOR *prepare(pair *p, size_t at, size_t len, unsigned n_segments)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(p->mem + at);
    memset(d, 0, sizeof(*d));
    d->CS.SegCount = (VIP_UINT16)n_segments;
    d->CS.Length = (VIP_UINT32)len;
    d->DS[0].Local.Data.Address = p->mem + at + sizeof(*d);
    d->DS[0].Local.Handle = p->mh;
    d->DS[0].Local.Length = (VIP_UINT32)len;
    return d;
}

/* The head of the queue, completed without error. */
static VIP_DESCRIPTOR *take(VIP_VI_HANDLE vi, VIP_RETURN (*done)(VIP_VI_HANDLE, VIP_DESCRIPTOR **))
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN r;
    WAIT_UNTIL((r = done(vi, &d)) != VIP_NOT_DONE);
    CHECK_OK(r);
    return d;
}

/* ---- note 3: the limits that programs have built in */

static void note_3(void)
{
    pair p;
    open_pair(&p, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    CHECK_EQ(p.attr.NicAddressLen, 6);
    CHECK(p.attr.MaxDiscriminatorLen >= 16);
    CHECK(p.attr.MaxTransferSize >= 65536);
    CHECK(p.attr.MaxCQEntries >= 1024);
    CHECK(p.attr.MaxVI >= 512);
    CHECK_EQ(p.attr.ReliabilityLevelSupport, 7);
    close_pair(&p);
}

/* ---- notes 4 and 11: handles are 32 bits and not 0; a write lands while its target makes no call, in order */

/* The target's thread: it looks at its memory and makes no call. */
static void *watch(void *p)
{
    const uint64_t *words = p;
    double end = check_now() + CHECK_WAIT_S;
    while (__atomic_load_n(&words[499], __ATOMIC_ACQUIRE) != 500) /* the last word comes last */
        if (check_now() > end)
            FAIL("the write did not land");
    for (uint64_t i = 0; i < 500; i++)
        CHECK_EQ(words[i], i + 1);
    return NULL;
}

static void note_4(void)
{
    pair p;
    pthread_t thread;
    VIP_MEM_HANDLE writable;
    VIP_MEM_ATTRIBUTES attr = {.EnableRdmaWrite = VIP_TRUE};
    uint64_t *from, *to;
    VIP_DESCRIPTOR *d;
    open_pair(&p, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    CHECK_OK(VipRegisterMem(p.nic, p.mem, 65536, &attr, &writable));
    CHECK(p.mh != 0 && writable != 0 && writable != p.mh);
    from = (uint64_t *)(void *)(p.mem + 8192);
    to = (uint64_t *)(void *)(p.mem + 16384);
    for (uint64_t i = 0; i < 500; i++)
        from[i] = i + 1;
    CHECK_EQ(pthread_create(&thread, NULL, watch, to), 0);
    d = prepare(&p, 0, 4000, 2);
    d->CS.Control = VIP_CONTROL_OP_RDMAWRITE;
    d->DS[1] = d->DS[0];
    d->DS[1].Local.Data.Address = from;
    d->DS[0].Remote.Data.Address = to;
    d->DS[0].Remote.Handle = writable;
    d->DS[0].Remote.Reserved = 0;
    CHECK_OK(VipPostSend(p.a, d, p.mh));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    CHECK(take(p.a, VipSendDone) == d);
    close_pair(&p);
}

/* ---- note 5: NO_MATCH at once, and by the whole discriminator; several requesters at once are all served. None of
 * them queues: a requester without a waiting server gets NO_MATCH and requests again. */

#define REQUESTERS 3

typedef struct {
    pair *p;
    VIP_VI_HANDLE vi;
    VIP_RETURN result;
} requester;

static address *door(pair *p, const char *name, address *a)
{
    memset(a, 0, sizeof(*a));
    a->net.HostAddressLen = 6;
    a->net.DiscriminatorLen = (VIP_UINT16)strlen(name);
    memcpy(a->room + 4, p->attr.LocalNicAddress, 6);
    memcpy(a->room + 10, name, strlen(name));
    return a;
}

static void *ask(void *p)
{
    requester *r = p;
    address to;
    door(r->p, "door", &to);
    do
        r->result = VipConnectRequest(r->vi, NULL, &to.net, 1000 * CHECK_WAIT_S, NULL);
    while (r->result == VIP_NO_MATCH);
    return NULL;
}

static void note_5(void)
{
    pair p;
    requester r[REQUESTERS];
    pthread_t threads[REQUESTERS];
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
    address here, there;
    VIP_CONN_HANDLE conn;
    VIP_VI_HANDLE vi;
    open_pair(&p, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    CHECK_OK(VipCreateVi(p.nic, &attr, NULL, NULL, &vi));
    /* A prefix of "door" is another name; VIP_INFINITE, and still it answers at once. */
    CHECK_RET(VipConnectRequest(vi, NULL, &door(&p, "doo", &there)->net, VIP_INFINITE, NULL), VIP_NO_MATCH);
    for (int i = 0; i < REQUESTERS; i++) {
        r[i].p = &p;
        CHECK_OK(VipCreateVi(p.nic, &attr, NULL, NULL, &r[i].vi));
        CHECK_EQ(pthread_create(&threads[i], NULL, ask, &r[i]), 0);
    }
    for (int i = 0; i < REQUESTERS; i++) {
        VIP_VI_HANDLE accepting;
        CHECK_OK(VipCreateVi(p.nic, &attr, NULL, NULL, &accepting));
        CHECK_OK(VipConnectWait(p.nic, &door(&p, "door", &here)->net, 1000 * CHECK_WAIT_S, &there.net, &attr, &conn));
        CHECK_OK(VipConnectAccept(conn, accepting));
    }
    for (int i = 0; i < REQUESTERS; i++) {
        CHECK_EQ(pthread_join(threads[i], NULL), 0);
        CHECK_OK(r[i].result);
    }
    close_pair(&p);
}

/* ---- note 7: the unreliable service delivers in order where nothing is lost */

static void note_7(void)
{
    pair p;
    open_pair(&p, VIP_SERVICE_UNRELIABLE, 0);
    for (uint32_t i = 0; i < 1000; i++) {
        VIP_DESCRIPTOR *r = prepare(&p, 128 * (i % 8), 4, 1), *s = prepare(&p, 4096 + 128 * (i % 8), 4, 1);
        /* Eight at a time, a receive before each send. */
        CHECK_OK(VipPostRecv(p.b, r, p.mh));
        memcpy(p.mem + 4096 + 128 * (i % 8) + 64, &i, 4);
        CHECK_OK(VipPostSend(p.a, s, p.mh));
        if (i % 8 < 7)
            continue;
        for (uint32_t k = i - 7; k <= i; k++) {
            uint32_t got;
            VIP_DESCRIPTOR *d = take(p.b, VipRecvDone);
            CHECK((uint8_t *)d == p.mem + 128 * (k % 8)); /* note 10: the very pointer that was posted */
            memcpy(&got, (uint8_t *)d + 64, 4);
            CHECK_EQ(got, k);
            take(p.a, VipSendDone);
        }
    }
    close_pair(&p);
}

/* ---- note 8: the same memory twice, with different rights; the NIC twice, one handle's user blocked for ever */

static atomic_int blocked;

static void *block(void *p)
{
    VIP_CQ_HANDLE cq = p;
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    atomic_store(&blocked, 1);
    CHECK_RET(VipCQWait(cq, VIP_INFINITE, &vi, &recv), VIP_INVALID_PARAMETER); /* until the NIC is closed under it */
    return NULL;
}

static void note_8(void)
{
    pair p;
    VIP_MEM_ATTRIBUTES attr = {.EnableRdmaWrite = VIP_TRUE}, got;
    VIP_MEM_HANDLE again;
    VIP_NIC_HANDLE second;
    VIP_CQ_HANDLE cq;
    pthread_t thread;
    open_pair(&p, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    CHECK_OK(VipRegisterMem(p.nic, p.mem, 65536, &attr, &again));
    CHECK_OK(VipQueryMem(p.nic, p.mem, p.mh, &got));
    CHECK_EQ(got.EnableRdmaWrite, VIP_FALSE);
    CHECK_OK(VipQueryMem(p.nic, p.mem, again, &got));
    CHECK_EQ(got.EnableRdmaWrite, VIP_TRUE);
    CHECK_OK(VipDeregisterMem(p.nic, p.mem, again));
    CHECK_OK(VipQueryMem(p.nic, p.mem, p.mh, &got));
    CHECK_OK(VipOpenNic("loop:notes", &second));
    CHECK(second != p.nic);
    CHECK_OK(VipCreateCQ(second, 4, &cq));
    CHECK_EQ(pthread_create(&thread, NULL, block, cq), 0);
    WAIT_UNTIL(atomic_load(&blocked));
    CHECK_OK(VipPostRecv(p.b, prepare(&p, 0, 8, 1), p.mh)); /* the other handle works meanwhile */
    CHECK_OK(VipPostSend(p.a, prepare(&p, 256, 8, 1), p.mh));
    take(p.b, VipRecvDone);
    CHECK_OK(VipCloseNic(second));
    CHECK_EQ(pthread_join(thread, NULL), 0);
    close_pair(&p);
}

/* ---- note 9: messages of nothing consume a receive; a descriptor lies right before its data, in one region */

static void note_9(void)
{
    /* Each level; without any segment, and with an empty one. */
    for (int level = 1; level <= 4; level *= 2)
        for (unsigned n_segments = 0; n_segments < 2; n_segments++) {
            pair p;
            VIP_DESCRIPTOR *r, *s, *next;
            open_pair(&p, (VIP_RELIABILITY_LEVEL)level, 0);
            r = prepare(&p, 0, 8, 1);
            next = prepare(&p, 128, 8, 1);
            CHECK_OK(VipPostRecv(p.b, r, p.mh));
            CHECK_OK(VipPostRecv(p.b, next, p.mh));
            s = prepare(&p, 256, 0, n_segments);
            CHECK_OK(VipPostSend(p.a, s, p.mh));
            CHECK(take(p.b, VipRecvDone) == r);
            CHECK_EQ(r->CS.Length, 0);
            CHECK(take(p.a, VipSendDone) == s);
            s = prepare(&p, 256, 8, 1);
            memcpy(s + 1, "right be", 8);
            CHECK_OK(VipPostSend(p.a, s, p.mh));
            CHECK(take(p.b, VipRecvDone) == next);
            CHECK(!memcmp(next + 1, "right be", 8));
            close_pair(&p);
        }
}

/* ---- note 10: an address and its discriminator at an odd place */

static void note_10(void)
{
    pair p;
    uint8_t room[128] __attribute__((aligned(64)));
    VIP_NET_ADDRESS *odd = (VIP_NET_ADDRESS *)(void *)(room + 2); /* the discriminator begins at byte 2 + 4 + 6 */
    VIP_CONN_HANDLE conn;
    address from;
    open_pair(&p, VIP_SERVICE_RELIABLE_DELIVERY, 0);
    odd->HostAddressLen = 6;
    odd->DiscriminatorLen = 7;
    memcpy(room + 6, p.attr.LocalNicAddress, 6);
    memcpy(room + 12, "oddness", 7);
    CHECK_RET(VipConnectWait(p.nic, odd, 1, &from.net, NULL, &conn), VIP_TIMEOUT);
    close_pair(&p);
}

int main(void)
{
    check_deadline(60);
    snprintf(check_context, sizeof(check_context), "notes");
    note_3();
    note_4();
    note_5();
    note_7();
    note_8();
    note_9();
    note_10();
    return 0;
}
