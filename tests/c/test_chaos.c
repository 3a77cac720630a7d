/*
 * test_chaos.c - random calls of VIPL on live, closed and invented handles, beside a connection that must not suffer.
 *
 * The test keeps a list of all handles that it ever got, with their kinds. Each step takes a function and a handle at
 * random: a live one, a closed one, one of another kind, or a number that never was a handle. A call on a live handle
 * may return anything that its page permits. Every other call must return VIP_INVALID_PARAMETER. Two VIs on NICs of
 * their own exchange numbered messages meanwhile, and check each byte.
 *
 * VIAKIT_TEST_SEED repeats a run, and VIAKIT_CHAOS_STEPS sets its length.
 */
#include <pthread.h>
#include <stdatomic.h>

#include "api_objects.h"
#include "harness.h"

#define N_SLOTS 256
#define N_LIVE 24 /* of each kind, at most */
#define LENGTH 512

enum kind { NIC, VI, CQ, PTAG, REGION, N_KINDS };

struct slot {
    enum kind kind;
    int live;
    void *handle; /* of a region: its number */
    int nic;      /* slot of the NIC that it belongs to */
};

static struct slot slots[N_SLOTS];
static int n_slots, n_live[N_KINDS];
static uint8_t memory[65536] __attribute__((aligned(64)));
static uint64_t state;
static atomic_int over;
static atomic_ullong n_messages;

static uint64_t draw(uint64_t below)
{
    state = state * 6364136223846793005ull + 1442695040888963407ull;
    return (state >> 33) % below;
}

static VIP_MEM_HANDLE number(void *handle)
{
    return (VIP_MEM_HANDLE)(uintptr_t)handle;
}

/* Notes a new object. An old closed one gives way if the list is full. */
static void keep(enum kind kind, void *handle, int nic)
{
    int at = n_slots;
    if (n_slots < N_SLOTS)
        n_slots++;
    else
        do
            at = (int)draw(N_SLOTS);
        while (slots[at].live);
    slots[at] = (struct slot){.kind = kind, .live = 1, .handle = handle, .nic = kind == NIC ? at : nic};
    n_live[kind]++;
}

static void gone(int at)
{
    slots[at].live = 0;
    n_live[slots[at].kind]--;
}

/* All that belongs to a NIC goes with it. */
static void nic_gone(int nic)
{
    for (int i = 0; i < n_slots; i++)
        if (slots[i].live && slots[i].nic == nic)
            gone(i);
}

/* A handle for a function that takes `kind`; returns its slot, or -1 if it is not a live one of this kind. */
static int choose(enum kind kind, void **handle)
{
    static const uintptr_t invented[] = {0, 1, 64, ~(uintptr_t)0, 0x7fffdeadbeef, 0x10001, 0xffff0000};
    if (draw(8) == 0) {
        *handle = (void *)(invented[draw(sizeof(invented) / sizeof(*invented))]);
        return -1;
    }
    for (int tries = 0; tries < 64; tries++) {
        int at = (int)draw((uint64_t)n_slots);
        struct slot *s = &slots[at];
        /* A number of a region is no pointer, so it is a wrong handle like any other. */
        if (s->kind == kind || draw(16) == 0) {
            *handle = s->handle;
            return s->live && s->kind == kind ? at : -1;
        }
    }
    *handle = NULL;
    return -1;
}

/* The rule for every call. */
static void judge(int at, VIP_RETURN code, const char *call)
{
    if (at < 0 && code != VIP_INVALID_PARAMETER)
        FAIL("%s on a wrong handle returned %s, expected VIP_INVALID_PARAMETER", call, check_return_name(code));
}

static void on_nic(void)
{
    VIP_VI_ATTRIBUTES vi_attr = {.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY};
    VIP_NIC_ATTRIBUTES attr;
    VIP_MEM_HANDLE mh;
    viakit_nic_info info;
    void *nic, *made;
    int n, at = choose(NIC, &nic);
    VIP_RETURN code = VIP_SUCCESS;
    switch (draw(9)) {
    case 0:
        code = VipQueryNic(nic, &attr);
        break;
    case 1:
        code = viakit_query_nic(nic, &info);
        break;
    case 2:
        code = viakit_poll(nic, &n);
        break;
    case 3:
    case 4:
        if ((code = VipCreateVi(nic, &vi_attr, NULL, NULL, &made)) == VIP_SUCCESS)
            keep(VI, made, at);
        break;
    case 5:
        if ((code = VipCreateCQ(nic, 8, &made)) == VIP_SUCCESS)
            keep(CQ, made, at);
        break;
    case 6:
        if ((code = VipCreatePtag(nic, &made)) == VIP_SUCCESS)
            keep(PTAG, made, at);
        break;
    case 7:
        if ((code = VipRegisterMem(nic, memory, sizeof(memory), NULL, &mh)) == VIP_SUCCESS)
            keep(REGION, (void *)(uintptr_t)mh, at);
        break;
    case 8:
        /* Seldom, so that the other objects live for a while. */
        if (at >= 0 && draw(4))
            break;
        if ((code = VipCloseNic(nic)) == VIP_SUCCESS)
            nic_gone(at);
        break;
    }
    judge(at, code, "a call on a NIC");
}

static void on_vi(void)
{
    VIP_DESCRIPTOR *got, *d = (VIP_DESCRIPTOR *)(void *)(memory + 64 * draw(512));
    VIP_VI_STATE now;
    VIP_VI_ATTRIBUTES attr;
    VIP_UINT64 counters[VIAKIT_N_COUNTERS];
    void *vi, *region;
    int at = choose(VI, &vi);
    VIP_RETURN code = VIP_SUCCESS;
    choose(REGION, &region);
    switch (draw(8)) {
    case 0:
        code = VipQueryVi(vi, &now, &attr, NULL, NULL);
        break;
    case 1:
        code = VipDisconnect(vi);
        break;
    case 2:
        code = VipRecvDone(vi, &got);
        break;
    case 3:
        code = VipSendWait(vi, 1, &got);
        break;
    case 4:
        /* The VI is idle, so a descriptor that is accepted completes with an error, or waits until it
         * is disconnected. */
        memset(d, 0, 64);
        code = VipPostSend(vi, d, number(region));
        break;
    case 5:
        code = viakit_vi_counters(vi, counters);
        break;
    case 6:
        code = VipSetViAttributes(vi, &(VIP_VI_ATTRIBUTES){.ReliabilityLevel = VIP_SERVICE_UNRELIABLE});
        break;
    case 7:
        if (VipDisconnect(vi) == VIP_SUCCESS)
            while ((code = VipSendDone(vi, &got)) != VIP_NOT_DONE && got != NULL) {}
        if ((code = VipDestroyVi(vi)) == VIP_SUCCESS && at >= 0)
            gone(at);
        break;
    }
    judge(at, code, "a call on a VI");
}

static void on_cq(void)
{
    void *cq, *vi;
    VIP_BOOLEAN recv;
    int at = choose(CQ, &cq);
    VIP_RETURN code = VIP_SUCCESS;
    switch (draw(4)) {
    case 0:
        code = VipCQDone(cq, &vi, &recv);
        break;
    case 1:
        code = VipCQWait(cq, 1, &vi, &recv);
        break;
    case 2:
        code = VipResizeCQ(cq, 1 + (VIP_ULONG)draw(64));
        break;
    case 3:
        if ((code = VipDestroyCQ(cq)) == VIP_SUCCESS && at >= 0)
            gone(at);
        break;
    }
    judge(at, code, "a call on a completion queue");
}

/*
 * The slot of the live region of a NIC that has this handle, or -1. A handle has 16 random bits, so a region of another
 * NIC, a closed one, or a pointer cut to 32 bits can have the same number by chance: the number decides, not the slot
 * that it was taken from.
 */
static int region_of(int nic, VIP_MEM_HANDLE handle)
{
    for (int i = 0; nic >= 0 && i < n_slots; i++)
        if (slots[i].live && slots[i].kind == REGION && slots[i].nic == nic && number(slots[i].handle) == handle)
            return i;
    return -1;
}

/* A call with a tag or a region also names a NIC. The call is right if both are live and belong together. */
static void on_memory(void)
{
    VIP_MEM_ATTRIBUTES attr = {0};
    void *nic, *ptag, *region;
    int owner = choose(NIC, &nic), tag = choose(PTAG, &ptag), memory_at;
    int tag_fits = owner >= 0 && tag >= 0 && slots[tag].nic == owner;
    choose(REGION, &region);
    memory_at = region_of(owner, number(region));
    if (draw(2)) {
        VIP_RETURN code = VipDestroyPtag(nic, ptag);
        judge(tag_fits ? tag : -1, code, "VipDestroyPtag");
        if (code == VIP_SUCCESS)
            gone(tag);
    } else if (draw(2)) {
        VIP_RETURN code = VipDeregisterMem(nic, memory, number(region));
        judge(memory_at, code, "VipDeregisterMem");
        if (code == VIP_SUCCESS)
            gone(memory_at);
    } else
        judge(memory_at, VipQueryMem(nic, memory, number(region), &attr), "VipQueryMem");
}

/* ---------------------------------------------------------------- the connection beside it */

static void send_one(VIP_VI_HANDLE vi, uint8_t *room, VIP_MEM_HANDLE mh, uint64_t i)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)room, *got = NULL;
    memset(d, 0, 128);
    pattern_fill(room + 1024, LENGTH, i);
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = LENGTH;
    d->DS[0].Local.Data.Address = room + 1024;
    d->DS[0].Local.Handle = mh;
    CHECK_OK(VipPostSend(vi, d, mh));
    CHECK_OK(VipSendWait(vi, 1000 * CHECK_WAIT_S, &got));
}

static void post_one(VIP_VI_HANDLE vi, uint8_t *room, VIP_MEM_HANDLE mh)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)room;
    memset(d, 0, 128);
    d->CS.Control = VIP_CONTROL_OP_SENDRECV;
    d->CS.SegCount = 1;
    d->CS.Length = d->DS[0].Local.Length = LENGTH;
    d->DS[0].Local.Data.Address = room + 1024;
    d->DS[0].Local.Handle = mh;
    CHECK_OK(VipPostRecv(vi, d, mh));
}

static void *accept_one(void *argument)
{
    objects *o = argument;
    address here, there;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    there.net.HostAddressLen = 0;
    CHECK_OK(VipConnectWait(o->nic, own_address(o, &here, "oracle"), 1000 * CHECK_WAIT_S, &there.net, &attr, &conn));
    CHECK_OK(VipConnectAccept(conn, o->vi));
    return NULL;
}

/* Messages from one NIC to another, until the chaos is over. */
static void *oracle(void *argument)
{
    static objects a, b;
    address here, there;
    VIP_VI_ATTRIBUTES attr;
    VIP_DESCRIPTOR *got;
    pthread_t server;
    (void)argument;
    open_objects(&a);
    open_objects(&b);
    CHECK_EQ(pthread_create(&server, NULL, accept_one, &b), 0);
    WAIT_UNTIL(VipConnectRequest(a.vi, own_address(&a, &here, "a"), own_address(&b, &there, "oracle"), 1000, &attr) ==
               VIP_SUCCESS);
    CHECK_EQ(pthread_join(server, NULL), 0);
    for (uint64_t i = 0; !atomic_load(&over) || i < 100; i++) {
        post_one(b.vi, b.mem, b.mh);
        send_one(a.vi, a.mem, a.mh, i);
        CHECK_OK(VipRecvWait(b.vi, 1000 * CHECK_WAIT_S, &got));
        CHECK_EQ(got->CS.Length, LENGTH);
        pattern_check(b.mem + 1024, LENGTH, i);
        atomic_fetch_add(&n_messages, 1);
    }
    CHECK_OK(VipDisconnect(a.vi));
    CHECK_OK(VipDisconnect(b.vi));
    close_objects(&a);
    close_objects(&b);
    return NULL;
}

int main(void)
{
    const char *given = getenv("VIAKIT_TEST_SEED"), *wish = getenv("VIAKIT_CHAOS_STEPS");
    uint64_t seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) ^ ((uint64_t)getpid() << 20);
    long steps = wish ? strtol(wish, NULL, 0) : 20000 / CHECK_SLOWER;
    pthread_t beside;
    void *nic;
    printf("VIAKIT_TEST_SEED=%llu\n", (unsigned long long)seed);
    fflush(stdout);
    snprintf(check_context, sizeof(check_context), "chaos");
    check_deadline(300);
    state = seed;
    CHECK_EQ(pthread_create(&beside, NULL, oracle, NULL), 0);
    for (long i = 0; i < steps; i++) {
        if (n_live[NIC] == 0 || (n_live[NIC] < 3 && draw(50) == 0)) {
            CHECK_OK(VipOpenNic("loop:chaos", &nic));
            CHECK_OK(VipErrorCallback(nic, NULL, ignore_error));
            keep(NIC, nic, 0);
        }
        switch (draw(4)) {
        case 0:
            on_nic();
            break;
        case 1:
            on_vi();
            break;
        case 2:
            on_cq();
            break;
        case 3:
            on_memory();
            break;
        }
        /* So many objects of a kind would hide the closed ones. */
        for (int j = 0; n_live[VI] + n_live[CQ] + n_live[REGION] + n_live[PTAG] > 4 * N_LIVE && j < n_slots; j++)
            if (slots[j].live && slots[j].kind == NIC) {
                CHECK_OK(VipCloseNic(slots[j].handle));
                nic_gone(j);
            }
    }
    for (int j = 0; j < n_slots; j++)
        if (slots[j].live && slots[j].kind == NIC) {
            CHECK_OK(VipCloseNic(slots[j].handle));
            nic_gone(j);
        }
    atomic_store(&over, 1);
    CHECK_EQ(pthread_join(beside, NULL), 0);
    CHECK_NOTHING_LEFT();
    printf("%ld calls; %llu messages whole\n", steps, (unsigned long long)atomic_load(&n_messages));
    return 0;
}
