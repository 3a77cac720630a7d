/*
 * test_mem.c - registered memory: rights, handles, limits, and what happens where memory may not be locked.
 *
 * A registration is a handle with rights of its own, not a property of the memory (VIPL: the same memory may be
 * registered several times). Handles are guarded against guessing and against use after their end; pinning is an
 * attempt, whose failure is reported and has no other effect.
 */
#define _GNU_SOURCE /* MAP_32BIT */
#include <errno.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>

#include "check.h"
#include "via/mem.h"

static VIP_NIC_HANDLE open_loop(void)
{
    VIP_NIC_HANDLE nic;
    CHECK_OK(VipOpenNic("loop:mem", &nic));
    return nic;
}

static uint8_t *map(size_t len)
{
    void *p = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(p != MAP_FAILED);
    return p;
}

/* Two pages of which only the first is there. The hole lies where nothing is mapped unasked (in the lowest 2 GiB):
 * anywhere else a thread that starts meanwhile may fill it. */
static uint8_t *map_half(void)
{
#ifdef MAP_32BIT
    const int low = MAP_32BIT;
#else
    const int low = 0;
#endif
    uint8_t *p = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | low, -1, 0);
    CHECK(p != MAP_FAILED);
    munmap(p + 4096, 4096);
    return p;
}

static viakit_nic_info info_of(VIP_NIC_HANDLE nic)
{
    viakit_nic_info info;
    CHECK_OK(viakit_query_nic(nic, &info));
    return info;
}

/* The same memory twice with different rights: two handles, each with its own attributes, each with its own life. */
static void test_twice(void)
{
    VIP_NIC_HANDLE nic = open_loop();
    VIP_PROTECTION_HANDLE ptag;
    VIP_MEM_ATTRIBUTES a, got;
    VIP_MEM_HANDLE h1, h2;
    uint8_t *p = map(8192);
    CHECK_OK(VipCreatePtag(nic, &ptag));
    memset(&a, 0, sizeof(a));
    a.Ptag = ptag;
    CHECK_OK(VipRegisterMem(nic, p, 8192, &a, &h1));
    a.EnableRdmaWrite = VIP_TRUE;
    /* The right is the second registration's alone. */
    CHECK_OK(VipRegisterMem(nic, p, 8192, &a, &h2));
    CHECK(h1 != h2 && h1 != 0 && h2 != 0);
    CHECK_OK(VipQueryMem(nic, p, h1, &got));
    CHECK(got.Ptag == ptag && got.EnableRdmaWrite == VIP_FALSE && got.EnableRdmaRead == VIP_FALSE);
    CHECK_OK(VipQueryMem(nic, p, h2, &got));
    CHECK(got.Ptag == ptag && got.EnableRdmaWrite == VIP_TRUE);
    CHECK_EQ(info_of(nic).regions, 2);
    CHECK_EQ(info_of(nic).bytes_registered, 16384);
    /* In use by both. */
    CHECK_RET(VipDestroyPtag(nic, ptag), VIP_ERROR_RESOURCE);
    CHECK_OK(VipDeregisterMem(nic, p, h1));
    /* One ends, the other lives on. */
    CHECK_RET(VipQueryMem(nic, p, h1, &got), VIP_INVALID_PARAMETER);
    CHECK_OK(VipQueryMem(nic, p, h2, &got));
    CHECK_OK(VipDeregisterMem(nic, p, h2));
    CHECK_EQ(info_of(nic).bytes_registered, 0);
    CHECK_EQ(info_of(nic).bytes_pinned, 0);
    CHECK_OK(VipDestroyPtag(nic, ptag));
    CHECK_OK(VipCloseNic(nic));
    munmap(p, 8192);
}

/* Rights and tag may be changed; a tag that is gone may not be given. */
static void test_set_attributes(void)
{
    VIP_NIC_HANDLE nic = open_loop();
    VIP_PROTECTION_HANDLE t1, t2;
    VIP_MEM_ATTRIBUTES a = {0}, got;
    VIP_MEM_HANDLE h;
    uint8_t *p = map(4096);
    CHECK_OK(VipCreatePtag(nic, &t1));
    CHECK_OK(VipCreatePtag(nic, &t2));
    a.Ptag = t1;
    CHECK_OK(VipRegisterMem(nic, p, 4096, &a, &h));
    a.Ptag = t2;
    a.EnableRdmaWrite = VIP_TRUE;
    CHECK_OK(VipSetMemAttributes(nic, p, h, &a));
    CHECK_OK(VipQueryMem(nic, p, h, &got));
    CHECK(got.Ptag == t2 && got.EnableRdmaWrite == VIP_TRUE);
    CHECK_OK(VipDestroyPtag(nic, t1)); /* no longer in use */
    CHECK_RET(VipDestroyPtag(nic, t2), VIP_ERROR_RESOURCE);
    a.Ptag = t1;
    CHECK_RET(VipSetMemAttributes(nic, p, h, &a), VIP_INVALID_PTAG);
    CHECK_OK(VipQueryMem(nic, p, h, &got));
    CHECK(got.Ptag == t2);
    CHECK_OK(VipDeregisterMem(nic, p, h));
    CHECK_OK(VipRegisterMem(nic, p, 4096, NULL, &h)); /* no attributes: no tag, no rights */
    CHECK_OK(VipQueryMem(nic, p, h, &got));
    CHECK(got.Ptag == NULL && got.EnableRdmaWrite == VIP_FALSE);
    CHECK_OK(VipDeregisterMem(nic, p, h));
    CHECK_OK(VipCloseNic(nic));
    munmap(p, 4096);
}

static void test_wrong(void)
{
    const VIP_RETURN bad = VIP_INVALID_PARAMETER;
    VIP_NIC_HANDLE nic = open_loop(), other = open_loop();
    VIP_PROTECTION_HANDLE foreign;
    VIP_MEM_ATTRIBUTES a = {0};
    /* 77: results are set on success only. */
    VIP_MEM_HANDLE h = 77, h2;
    uint8_t *p = map_half();
    /* No memory, none of it, too much of it, an end that wraps, a hole. */
    CHECK_RET(VipRegisterMem(nic, NULL, 4096, NULL, &h), bad);
    CHECK_RET(VipRegisterMem(nic, p, 0, NULL, &h), bad);
    CHECK_RET(VipRegisterMem(nic, p, ~(VIP_ULONG)0, NULL, &h), bad);
    CHECK_RET(VipRegisterMem(nic, (void *)(uintptr_t)-4096, 8192, NULL, &h), bad);
    CHECK_RET(VipRegisterMem(nic, p, 8192, NULL, &h), bad); /* half of it is not there */
    CHECK_OK(VipCreatePtag(other, &foreign));
    a.Ptag = foreign;
    CHECK_RET(VipRegisterMem(nic, p, 4096, &a, &h), VIP_INVALID_PTAG);
    CHECK_EQ(h, 77);
    CHECK_OK(VipRegisterMem(nic, p, 4096, NULL, &h));
    CHECK_RET(VipDeregisterMem(nic, p + 64, h), bad); /* not the address it was registered with */
    /* Another index, another generation, none, all bits: none of them is guessed. */
    CHECK_RET(VipDeregisterMem(nic, p, h ^ 1), bad);
    CHECK_RET(VipDeregisterMem(nic, p, h ^ 0x10000), bad);
    CHECK_RET(VipDeregisterMem(nic, p, 0), bad);
    CHECK_RET(VipDeregisterMem(nic, p, 0xFFFFFFFFu), bad);
    CHECK_RET(VipDeregisterMem(other, p, h), bad);
    CHECK_OK(VipDeregisterMem(nic, p, h));
    CHECK_RET(VipDeregisterMem(nic, p, h), bad);
    CHECK_OK(VipRegisterMem(nic, p, 4096, NULL, &h2));
    CHECK(h2 != h); /* an old handle does not come to mean new memory */
    CHECK_RET(VipDeregisterMem(nic, p, h), bad);
    munmap(p, 4096); /* before it is deregistered: the program's mistake, not to be answered with a crash */
    CHECK_OK(VipDeregisterMem(nic, p, h2));
    CHECK_OK(VipCloseNic(other));
    CHECK_OK(VipCloseNic(nic));
}

/* As many regions as the NIC says, and not one more; all of them usable again afterwards. */
static void test_limit(void)
{
    VIP_NIC_HANDLE nic = open_loop();
    VIP_NIC_ATTRIBUTES attr;
    VIP_MEM_HANDLE *h, more;
    VIP_ULONG n = 0;
    uint8_t *p = map(4096);
    CHECK_OK(VipQueryNic(nic, &attr));
    h = calloc(attr.MaxRegisterRegions + 1, sizeof(*h));
    CHECK(h != NULL);
    /* The table holds so many; one more is refused, and all places can be used again. */
    while (n <= attr.MaxRegisterRegions && VipRegisterMem(nic, p, 64, NULL, &h[n]) == VIP_SUCCESS)
        n++;
    CHECK_EQ(n, attr.MaxRegisterRegions);
    CHECK_RET(VipRegisterMem(nic, p, 64, NULL, &more), VIP_ERROR_RESOURCE);
    for (VIP_ULONG i = 0; i < n; i++)
        CHECK_OK(VipDeregisterMem(nic, p, h[i]));
    CHECK_OK(VipRegisterMem(nic, p, 64, NULL, &more));
    CHECK_OK(VipDeregisterMem(nic, p, more));
    CHECK_EQ(info_of(nic).bytes_registered, 0);
    free(h);
    CHECK_OK(VipCloseNic(nic));
    munmap(p, 4096);
}

/* RLIMIT_MEMLOCK of 64 KiB, without the privilege to exceed it: registration works, and says what it could not pin. */
static void test_memlock(void)
{
    int status;
    pid_t pid = fork();
    CHECK(pid >= 0);
    if (pid == 0) {
        struct rlimit limit = {65536, 65536};
        VIP_UINT64 before[VIAKIT_N_COUNTERS], after[VIAKIT_N_COUNTERS];
        VIP_MEM_HANDLE h;
        VIP_NIC_HANDLE nic;
        size_t len = 1 << 20;
        uint8_t *p = map(len);
        check_deadline(60);
        CHECK_EQ(setrlimit(RLIMIT_MEMLOCK, &limit), 0);
        /* Pinning is refused to ordinary users; root's privilege would exceed the limit. */
        if (geteuid() == 0 && (setgid(65534) || setuid(65534)))
            FAIL("cannot give up root: %s", strerror(errno));
        nic = open_loop();
        CHECK_OK(viakit_nic_counters(nic, before));
        CHECK_OK(VipRegisterMem(nic, p, len, NULL, &h));
        CHECK_OK(viakit_nic_counters(nic, after));
        CHECK_EQ(info_of(nic).bytes_registered, (long long)len);
        if (CHECK_SLOWER == 1) { /* the sanitizers' mlock succeeds without doing anything */
            CHECK_EQ(after[VIAKIT_COUNTER_pin_failures] - before[VIAKIT_COUNTER_pin_failures], 1);
            CHECK(info_of(nic).bytes_pinned < len);
        }
        CHECK_OK(VipDeregisterMem(nic, p, h));
        CHECK_OK(VipCloseNic(nic));
        CHECK_NOTHING_LEFT();
        _exit(0);
    }
    CHECK_EQ(waitpid(pid, &status, 0), pid);
    CHECK(WIFEXITED(status) && WEXITSTATUS(status) == 0);
}

/* viakit_alloc: page-aligned, zeroed, registrable in part, and not to be freed under a registration. */
static void test_alloc(void)
{
    /* On loop it is memory of the process, on shm memory that others can map. */
    static const char *const devices[] = {"loop:mem", "shm:mem"};
    for (int i = 0; i < 2; i++) {
        VIP_NIC_HANDLE nic;
        VIP_MEM_HANDLE h;
        char device[64];
        void *p, *q;
        snprintf(device, sizeof(device), "%s%d", devices[i], (int)getpid());
        CHECK_OK(VipOpenNic(device, &nic));
        CHECK_RET(viakit_alloc(nic, 0, &p), VIP_INVALID_PARAMETER);
        if (CHECK_SLOWER == 1) /* a sanitizer's allocator ends the program for such a wish */
            CHECK(viakit_alloc(nic, (size_t)1 << 62, &p) != VIP_SUCCESS);
        CHECK_OK(viakit_alloc(nic, 100000, &p));
        CHECK_OK(viakit_alloc(nic, 1, &q));
        CHECK(p != q);
        CHECK_EQ((uintptr_t)p % 4096, 0);
        CHECK_EQ(((uint8_t *)p)[0], 0);
        CHECK_EQ(((uint8_t *)p)[99999], 0);
        memset(p, 7, 100000);
        /* A part of it: registering need not begin where the allocation does. */
        CHECK_OK(VipRegisterMem(nic, (uint8_t *)p + 4096, 5000, NULL, &h));
        CHECK_RET(viakit_free(nic, p), VIP_ERROR_RESOURCE);
        CHECK_OK(VipDeregisterMem(nic, (uint8_t *)p + 4096, h));
        CHECK_OK(viakit_free(nic, p));
        CHECK_RET(viakit_free(nic, NULL), VIP_INVALID_PARAMETER);
        CHECK_OK(viakit_free(nic, q));
        CHECK_OK(VipCloseNic(nic));
        CHECK_NOTHING_LEFT();
    }
}

/* Registers a byte, and returns the number of its table entry. */
static uint32_t register_byte(VIP_NIC_HANDLE nic, uint8_t *at, VIP_MEM_HANDLE *h)
{
    CHECK_OK(VipRegisterMem(nic, at, 1, NULL, h));
    return *h & 0xFFFF;
}

/* A peer on the same host is counted in the entry of a region, as if it had been stopped in a copy. Deregistering ends
 * after a second, and the entry is not used again: the peer may resume, and then decrements the count. */
static void test_stopped_peer(void)
{
    VIP_NIC_HANDLE handle;
    VIP_MEM_HANDLE stuck, other, third;
    VIP_MEM_ATTRIBUTES a = {0};
    char device[64];
    uint8_t *p = map(4096);
    snprintf(device, sizeof(device), "shm:mem-stopped-%d", (int)getpid());
    CHECK_OK(VipOpenNic(device, &handle));
    const struct via_nic *nic = vk_pool_find(&via_nic_pool, handle);
    CHECK(nic && nic->published);

    uint32_t index = register_byte(handle, p, &stuck);
    struct via_region *entry = &nic->published[index];
    CHECK_EQ(entry->handle, stuck);
    vk_add(&entry->users, 1);
    /* The attributes change, and from now on the region is reached by frames only. */
    CHECK_OK(VipSetMemAttributes(handle, p, stuck, &a));
    CHECK_EQ(entry->handle, 0);
    CHECK_OK(VipQueryMem(handle, p, stuck, &a));
    CHECK_OK(VipDeregisterMem(handle, p, stuck));
    CHECK_EQ(entry->users, 1);
    CHECK(register_byte(handle, p, &other) != index);
    CHECK_OK(VipDeregisterMem(handle, p, other));
    vk_add(&entry->users, (uint32_t)-1);
    for (int i = 0; i < 3; i++) {
        uint32_t next = register_byte(handle, p, &third);
        CHECK(next != index);
        CHECK_EQ(nic->published[next].users, 0);
        CHECK_OK(VipDeregisterMem(handle, p, third));
    }
    CHECK_OK(VipCloseNic(handle));
    CHECK_NOTHING_LEFT();
    munmap(p, 4096);
}

int main(void)
{
    snprintf(check_context, sizeof(check_context), "mem");
    check_deadline(120);
    test_memlock(); /* first: it forks */
    test_twice();
    test_set_attributes();
    test_wrong();
    test_limit();
    test_alloc();
    test_stopped_peer();
    CHECK_NOTHING_LEFT();
    return 0;
}
