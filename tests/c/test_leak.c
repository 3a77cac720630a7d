/*
 * test_leak.c - opening and closing a thousand times leaves nothing: no descriptor of a file, no mapping, no object, no
 * file in /dev/shm. test_leak [DEVICE...]
 *
 * Every second round closes the NIC with everything still on it: what VipCloseNic takes down by itself must be as clean
 * as what a tidy program takes down piece by piece.
 */
#include <dirent.h>
#include <sys/mman.h>

#include "check.h"

static int count_entries(const char *dir)
{
    DIR *d = opendir(dir);
    int n = 0;
    CHECK(d != NULL);
    while (readdir(d))
        n++;
    closedir(d);
    return n;
}

static int count_lines(const char *path)
{
    FILE *f = fopen(path, "r");
    int n = 0, c;
    CHECK(f != NULL);
    while ((c = fgetc(f)) != EOF)
        n += c == '\n';
    fclose(f);
    return n;
}

/* A NIC with one object of each kind, used and given back in order, or left for VipCloseNic. */
static void once(const char *device, uint8_t *mem, int orderly)
{
    VIP_NIC_HANDLE nic;
    VIP_PROTECTION_HANDLE ptag;
    VIP_CQ_HANDLE cq;
    VIP_VI_HANDLE vi;
    VIP_MEM_HANDLE mh;
    VIP_MEM_ATTRIBUTES mem_attr = {0};
    VIP_VI_ATTRIBUTES vi_attr = {0};
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)mem, *got;
    void *p;
    CHECK_OK(VipOpenNic(device, &nic));
    CHECK_OK(VipCreatePtag(nic, &ptag));
    mem_attr.Ptag = ptag;
    CHECK_OK(VipRegisterMem(nic, mem, 4096, &mem_attr, &mh));
    CHECK_OK(VipCreateCQ(nic, 8, &cq));
    vi_attr.ReliabilityLevel = VIP_SERVICE_RELIABLE_DELIVERY;
    vi_attr.Ptag = ptag;
    CHECK_OK(VipCreateVi(nic, &vi_attr, NULL, cq, &vi));
    CHECK_OK(viakit_alloc(nic, 10000, &p));
    memset(d, 0, sizeof(*d));
    CHECK_OK(VipPostRecv(vi, d, mh));
    if (orderly) {
        CHECK_OK(VipDisconnect(vi));
        CHECK_RET(VipRecvDone(vi, &got), VIP_DESCRIPTOR_ERROR);
        CHECK_OK(VipDestroyVi(vi));
        CHECK_OK(VipDestroyCQ(cq));
        CHECK_OK(VipDeregisterMem(nic, mem, mh));
        CHECK_OK(VipDestroyPtag(nic, ptag));
        CHECK_OK(viakit_free(nic, p));
    }
    CHECK_OK(VipCloseNic(nic));
    CHECK_NOTHING_LEFT();
}

static void test_device(const char *device, int rounds)
{
    uint8_t *mem = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    int fds, maps, files = 0;
    CHECK(mem != MAP_FAILED);
    snprintf(check_context, sizeof(check_context), "leak %s", device);
    for (int i = 0; i < 20;
         i++) /* what is made once for good (pools, thread stacks the C library keeps) is made here */
        once(device, mem, i & 1);
    fds = count_entries("/proc/self/fd");
    maps = count_lines("/proc/self/maps");
    files = count_entries("/dev/shm");
    for (int i = 0; i < rounds; i++)
        once(device, mem, i & 1);
    /* Not one more: open files are counted exactly. */
    CHECK_EQ(count_entries("/proc/self/fd"), fds);
    /* A mapping per round would be hundreds; a few may come and go with the C library's heap and thread stacks. */
    if (count_lines("/proc/self/maps") > maps + 16)
        FAIL("%d mappings grew to %d in %d rounds", maps, count_lines("/proc/self/maps"), rounds);
    /* Other programs may use /dev/shm at the same time; one file per round would be ours. */
    if (count_entries("/dev/shm") >= files + rounds)
        FAIL("files were left in /dev/shm");
    munmap(mem, 4096);
}

int main(int argc, char **argv)
{
    char shm[64];
    check_deadline(240);
    if (argc > 1) {
        for (int i = 1; i < argc; i++)
            test_device(argv[i], 1000 / CHECK_SLOWER);
        return 0;
    }
    test_device("loop:leak", 1000 / CHECK_SLOWER);
    snprintf(shm, sizeof(shm), "shm:leak%d", (int)getpid());
    test_device(shm, 1000 / CHECK_SLOWER);
    return 0;
}
