/*
 * test_calls.c - the calls that need no partner: attributes of a VI, the size of a completion queue, the program's
 * pointer, names of devices and hosts, discovery. On loop.
 *
 * Names are the larger part. Programs of 2001 have device names built in and expect hosts to have names, so both are
 * mapped (docs/devices.md). The maps are lists in the environment, files, and rules of the provider's own. Files of the
 * tester's must not be seen here: main() turns the search for them into an empty folder.
 */
#include <stddef.h>
#include <sys/mman.h>

#include "address.h"
#include "check.h"

typedef struct {
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attr;
    VIP_PROTECTION_HANDLE tag, other_tag;
    uint8_t *mem;
    VIP_MEM_HANDLE mh, other_mh;
} objects;

static void open_objects(objects *o)
{
    VIP_MEM_ATTRIBUTES attr = {0};
    CHECK_OK(VipOpenNic("loop:calls", &o->nic));
    CHECK_OK(VipQueryNic(o->nic, &o->attr));
    CHECK_OK(VipCreatePtag(o->nic, &o->tag));
    CHECK_OK(VipCreatePtag(o->nic, &o->other_tag));
    o->mem = mmap(NULL, 8192, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    CHECK(o->mem != MAP_FAILED);
    attr.Ptag = o->tag;
    CHECK_OK(VipRegisterMem(o->nic, o->mem, 8192, &attr, &o->mh));
    attr.Ptag = o->other_tag;
    CHECK_OK(VipRegisterMem(o->nic, o->mem, 8192, &attr, &o->other_mh));
}

static void close_objects(objects *o)
{
    CHECK_OK(VipCloseNic(o->nic));
    munmap(o->mem, 8192);
}

/* Places of 64 bytes in the first page; each descriptor has 32 bytes of data of its own in the second. */
static VIP_DESCRIPTOR *descriptor(objects *o, int which, VIP_MEM_HANDLE mh)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)(o->mem + 64 * which);
    memset(d, 0, sizeof(*d));
    d->CS.SegCount = 1;
    d->CS.Length = 32;
    d->DS[0].Local.Data.Address = o->mem + 4096 + 32 * which;
    d->DS[0].Local.Handle = mh;
    d->DS[0].Local.Length = 32;
    return d;
}

/* ---------------------------------------------------------------- VipSetViAttributes */

static void test_set_attributes(void)
{
    objects o;
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_UNRELIABLE}, got;
    VIP_VI_HANDLE vi;
    VIP_VI_STATE state;
    VIP_PROTECTION_HANDLE foreign;
    address a;
    VIP_NIC_HANDLE other_nic;
    open_objects(&o);
    attr.Ptag = o.tag;
    CHECK_OK(VipCreateVi(o.nic, &attr, NULL, NULL, &vi));
    CHECK_RET(VipDestroyPtag(o.nic, o.tag), VIP_ERROR_RESOURCE);

    /* Each field, checked as by VipCreateVi; what is refused changes nothing. */
    attr.ReliabilityLevel = 3;
    CHECK_RET(VipSetViAttributes(vi, &attr), VIP_INVALID_RELIABILITY_LEVEL);
    attr.ReliabilityLevel = VIP_SERVICE_RELIABLE_RECEPTION;
    attr.MaxTransferSize = o.attr.MaxTransferSize + 1;
    CHECK_RET(VipSetViAttributes(vi, &attr), VIP_INVALID_MTU);
    attr.MaxTransferSize = 40000;
    CHECK_OK(VipOpenNic("loop:calls", &other_nic));
    CHECK_OK(VipCreatePtag(other_nic, &foreign));
    attr.Ptag = foreign;
    CHECK_RET(VipSetViAttributes(vi, &attr), VIP_INVALID_PTAG);
    CHECK_OK(VipCloseNic(other_nic));
    CHECK_RET(VipSetViAttributes(vi, NULL), VIP_INVALID_PARAMETER);
    CHECK_RET(VipSetViAttributes(NULL, &attr), VIP_INVALID_PARAMETER);
    /* As it was made, after all these refusals. */
    CHECK_OK(VipQueryVi(vi, &state, &got, NULL, NULL));
    CHECK_EQ(got.ReliabilityLevel, VIP_SERVICE_UNRELIABLE);
    CHECK_EQ(got.MaxTransferSize, o.attr.MaxTransferSize);
    CHECK(got.Ptag == o.tag);
    attr.Ptag = o.other_tag;
    attr.EnableRdmaWrite = VIP_TRUE;
    CHECK_OK(VipSetViAttributes(vi, &attr));
    CHECK_OK(VipQueryVi(vi, &state, &got, NULL, NULL));
    /* Then all at once, and it is taken. */
    CHECK(!memcmp(&got.ReliabilityLevel, &attr.ReliabilityLevel, sizeof(got.ReliabilityLevel)));
    CHECK_EQ(got.MaxTransferSize, 40000);
    CHECK(got.Ptag == o.other_tag && got.EnableRdmaWrite);

    /* The tag counts who uses it: the first one is free but for the region. */
    CHECK_RET(VipDestroyPtag(o.nic, o.tag), VIP_ERROR_RESOURCE);
    CHECK_OK(VipDeregisterMem(o.nic, o.mem, o.mh));
    CHECK_OK(VipDestroyPtag(o.nic, o.tag));
    CHECK_RET(VipDestroyPtag(o.nic, o.other_tag), VIP_ERROR_RESOURCE);

    /* Descriptors are judged by the new tag: the region's is allowed, a third one is not, the NULL tag matches any. */
    CHECK_OK(VipPostRecv(vi, descriptor(&o, 0, o.other_mh), o.other_mh));
    CHECK_OK(VipCreatePtag(o.nic, &o.tag));
    attr.Ptag = o.tag;
    CHECK_OK(VipSetViAttributes(vi, &attr));
    CHECK_RET(VipPostRecv(vi, descriptor(&o, 1, o.other_mh), o.other_mh), VIP_INVALID_PARAMETER);
    attr.Ptag = NULL;
    CHECK_OK(VipSetViAttributes(vi, &attr));
    CHECK_OK(VipPostRecv(vi, descriptor(&o, 1, o.other_mh), o.other_mh));

    /* Only of an idle VI. */
    memset(&a, 0, sizeof(a));
    a.net.HostAddressLen = 6;
    memcpy(a.room + 4, o.attr.LocalNicAddress, 6);
    CHECK_OK(VipConnectPeerRequest(vi, &a.net, &a.net, VIP_INFINITE));
    CHECK_RET(VipSetViAttributes(vi, &attr), VIP_INVALID_STATE);
    CHECK_OK(VipDisconnect(vi));
    CHECK_OK(VipSetViAttributes(vi, &attr));
    close_objects(&o);
}

/* ---------------------------------------------------------------- VipResizeCQ, user data */

/* Resizing keeps what is in the queue, in its order, wherever the ring's beginning was; too small for what is in it is
 * refused. */
static void test_resize(void)
{
    objects o;
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = VIP_SERVICE_UNRELIABLE};
    VIP_VI_HANDLE vi, from;
    VIP_CQ_HANDLE cq;
    VIP_BOOLEAN recv;
    open_objects(&o);
    attr.Ptag = o.tag;
    CHECK_OK(VipCreateCQ(o.nic, 8, &cq));
    CHECK_OK(VipCreateVi(o.nic, &attr, cq, cq, &vi));
    CHECK_RET(VipResizeCQ(cq, 0), VIP_INVALID_PARAMETER);
    CHECK_RET(VipResizeCQ(cq, o.attr.MaxCQEntries + 1), VIP_INVALID_PARAMETER);
    CHECK_RET(VipResizeCQ(NULL, 8), VIP_INVALID_PARAMETER);
    /* Six entries, of which two are taken: a ring that has moved on. Sends of an idle VI complete at once. */
    for (int i = 0; i < 6; i++)
        CHECK_OK(VipPostSend(vi, descriptor(&o, i, o.mh), o.mh));
    for (int i = 0; i < 2; i++)
        CHECK_OK(VipCQDone(cq, &from, &recv));
    CHECK_OK(VipPostRecv(vi, descriptor(&o, 10, o.mh), o.mh));
    CHECK_OK(VipDisconnect(vi)); /* the receive completes: entry five */
    CHECK_RET(VipResizeCQ(cq, 4), VIP_ERROR_RESOURCE);
    /* Exactly as many as are in it. */
    CHECK_OK(VipResizeCQ(cq, 5));
    CHECK_OK(VipResizeCQ(cq, 1000));
    for (int i = 6; i < 10; i++)
        CHECK_OK(VipPostSend(vi, descriptor(&o, i, o.mh), o.mh)); /* more than the old ring could hold */
    for (int i = 0; i < 9; i++) {                                 /* in order */
        CHECK_OK(VipCQDone(cq, &from, &recv));
        CHECK(from == vi);
        CHECK_EQ(recv, i == 4);
    }
    CHECK_RET(VipCQDone(cq, &from, &recv), VIP_NOT_DONE);
    VipSetUserData(vi, &o);
    CHECK(VipGetUserData(vi) == &o);
    VipSetUserData(vi, NULL);
    CHECK(VipGetUserData(vi) == NULL);
    close_objects(&o);
    VipSetUserData(vi, &o); /* dead: nothing happens, and it says why */
    CHECK(VipGetUserData(vi) == NULL);
    CHECK(strlen(viakit_last_error()) > 0);
}

/* ---------------------------------------------------------------- devices */

/* One folder for all files of this test; main() removes it. */
static char folder[] = "/tmp/viakit-test-calls-XXXXXX";

static char *write_file(const char *name, const char *text)
{
    static char path[256];
    FILE *f;
    snprintf(path, sizeof(path), "%s/%s", folder, name);
    f = fopen(path, "w");
    CHECK(f != NULL);
    fputs(text, f);
    fclose(f);
    return path;
}

/* Opens by name and compares the kind of link. The NIC keeps the name that was given. viakit_query_nic returns its
 * meaning. */
static void expect_device(const char *name, const char *real)
{
    VIP_NIC_HANDLE nic;
    VIP_NIC_ATTRIBUTES attr;
    viakit_nic_info info;
    CHECK_OK(VipOpenNic(name, &nic));
    CHECK_OK(VipQueryNic(nic, &attr));
    CHECK_OK(viakit_query_nic(nic, &info));
    if (strcmp(info.device, real) || strcmp(attr.Name, name))
        FAIL("%s is %s, named %s, expected %s", name, info.device, attr.Name, real);
    CHECK_OK(VipCloseNic(nic));
}

/* The message must name the cause: `part_of_reason`. */
static void expect_no_device(const char *name, const char *part_of_reason)
{
    VIP_NIC_HANDLE nic = NULL;
    CHECK_RET(VipOpenNic(name, &nic), VIP_INVALID_PARAMETER);
    CHECK(nic == NULL);
    if (!strstr(viakit_last_error(), part_of_reason))
        FAIL("%s was refused with \"%s\", expected to read \"%s\"", name, viakit_last_error(), part_of_reason);
}

/* Lines longer than one piece of the file that is read at a time. */
static void long_lines(void)
{
    static char text[4096], comment[1500], value[1500];
    memset(comment, 'c', sizeof(comment) - 1);
    memset(value, 'v', sizeof(value) - 1);
    /* A comment may be long, alone or behind a statement: what it says far behind is no statement of its own. */
    snprintf(text, sizeof(text), "# %s\ndevice nic1 = loop:one # %s\ndevice nic0 = loop:behind", comment, comment);
    setenv("VIAKIT_CONFIG", write_file("long.conf", text), 1);
    expect_device("nic1", "loop:one");
    expect_device("nic0", "loop:behind");
    snprintf(text, sizeof(text), "\ndevice nic1 = loop:%s\n", value);
    setenv("VIAKIT_CONFIG", write_file("long.conf", text), 1);
    expect_no_device("nic0", "long.conf:2: a line of more than");
    unsetenv("VIAKIT_CONFIG");
    snprintf(text, sizeof(text), "nic1=loop:%s;nic0=loop:behind", value);
    setenv("VIAKIT_DEVICES", text, 1);
    expect_no_device("nic0", "is not NAME=VALUE, of");
    unsetenv("VIAKIT_DEVICES");
}

static void test_devices(void)
{
    /* Notes for the implementer, 2: names that programs have built in. */
    static const char *const table[][2] = {
        {"/dev/clanvi0", "shm:0"}, {"nic0", "shm:0"},         {"VINIC", "shm:0"},
        {"VINIC0", "shm:0"},       {"/dev/via_lo", "shm:lo"}, {"/etc/via_lo", "shm:lo"},
        {"shm7", "shm:7"},         {"loop3", "loop:3"},       {"nic12", "shm:12"}};
    for (size_t i = 0; i < sizeof(table) / sizeof(*table); i++)
        expect_device(table[i][0], table[i][1]);
    expect_no_device("nic", "no device 'nic'");
    expect_no_device("nic1x", "no device");
    expect_no_device("/dev/via_eth999", "eth999"); /* the link says what interfaces there are */
    /* A list in the environment goes before the provider's own rules, and may even give a name that looks like a
     * device's another meaning. */
    setenv("VIAKIT_DEVICES", "nic0=loop:env; my card = loop:mine;shm:x=loop:shadow;bad=wood:1", 1);
    expect_device("nic0", "loop:env");
    expect_device("my card", "loop:mine");
    expect_device("shm:x", "loop:shadow");
    expect_device("VINIC", "shm:0");
    /* An entry of the list must itself be a device: no chains, and no other word. */
    expect_no_device("bad", "'wood:1' by VIAKIT_DEVICES, which is no device");
    setenv("VIAKIT_DEVICES", "nic0", 1);
    expect_no_device("loop", "'nic0' is not NAME=VALUE");
    setenv("VIAKIT_DEVICES", " ; nic0 = ;", 1);
    expect_no_device("loop", "' nic0 = ' is not NAME=VALUE");
    setenv("VIAKIT_DEVICES", "=loop", 1);
    expect_no_device("loop", "'=loop' is not NAME=VALUE");
    unsetenv("VIAKIT_DEVICES");
    setenv("VIAKIT_CONFIG",
           write_file("viakit.conf", "# ours\n\ndevice nic0 = loop:file # as always\n"
                                     "device wrong = tin\nhost anna = 02:00:00:00:00:aa\n"),
           1);
    expect_device("nic0", "loop:file");
    expect_no_device("wrong", "viakit.conf:4");
    /* The entries before a malformed line are valid. Only a lookup that needs that line gets its error. */
    setenv("VIAKIT_CONFIG", write_file("bad.conf", "device nic0 = loop\nnonsense\n"), 1);
    expect_device("nic0", "loop");
    expect_no_device("VINIC", "bad.conf:2: 'nonsense' is not understood");
    setenv("VIAKIT_CONFIG", "/no/such/file", 1);
    expect_no_device("loop", "cannot read /no/such/file");
    setenv("VIAKIT_CONFIG", folder, 1); /* it can be opened, and not be read */
    expect_no_device("nic0", "cannot read /tmp");
    long_lines();
    unsetenv("VIAKIT_CONFIG");
    setenv("XDG_CONFIG_HOME", folder, 1); /* a missing file is no error */
    expect_device("nic0", "shm:0");
    unsetenv("XDG_CONFIG_HOME");
}

/* ---------------------------------------------------------------- hosts */

/* Expects six bytes, `expected` in hexadecimal or this host's own (NULL), and nothing written beside them. */
static void expect_host(objects *o, const char *name, VIP_ULONG index, const char *expected)
{
    uint8_t want[6];
    union {
        VIP_NET_ADDRESS net;
        uint8_t room[80];
    } a;
    unsigned b[6];
    memset(&a, 0xEE, sizeof(a)); /* notes, 4: both lengths may be unset */
    CHECK_OK(VipNSGetHostByName(o->nic, (VIP_CHAR *)(uintptr_t)name, &a.net, index));
    if (expected) {
        CHECK_EQ(sscanf(expected, "%x:%x:%x:%x:%x:%x", &b[0], &b[1], &b[2], &b[3], &b[4], &b[5]), 6);
        for (int i = 0; i < 6; i++)
            want[i] = (uint8_t)b[i];
    } else
        memcpy(want, o->attr.LocalNicAddress, 6);
    CHECK_EQ(a.net.HostAddressLen, 6);
    CHECK(!memcmp(a.room + 4, want, 6));
    CHECK_EQ(a.net.DiscriminatorLen, 0xEEEE); /* the caller's affair */
    CHECK_EQ(a.room[10], 0xEE);
}

static void test_hosts(void)
{
    objects o;
    address a;
    char name[64], *path;
    VIP_ULONG len;
    open_objects(&o);
    CHECK_OK(VipNSInit(o.nic, NULL));
    expect_host(&o, "localhost", 0, NULL);
    expect_host(&o, "a", 0, NULL); /* notes, 4: arbitrary labels */
    expect_host(&o, "02:00:00:00:00:07", 0, "2:0:0:0:0:7");
    path = write_file("hosts", "anna 02:00:00:00:00:0a the first\nanna\t02:00:00:00:00:1a\n"
                               "host bert = 02:00:00:00:00:0b\n# none\n");
    setenv("VIAKIT_HOSTS", path, 1);
    expect_host(&o, "anna", 0, "2:0:0:0:0:a");
    expect_host(&o, "anna", 1, "2:0:0:0:0:1a");
    expect_host(&o, "bert", 0, "2:0:0:0:0:b");
    /* There are two of that name, numbered from 0. */
    CHECK_RET(VipNSGetHostByName(o.nic, (VIP_CHAR *)"anna", &a.net, 2), VIP_ERROR_NAMESERVICE);
    /* A file that is named to VipNSInit comes first, until VipNSShutdown. */
    path = write_file("site", "anna 02:00:00:00:00:cc\n");
    CHECK_OK(VipNSInit(o.nic, path));
    expect_host(&o, "anna", 0, "2:0:0:0:0:cc");
    expect_host(&o, "anna", 1, "2:0:0:0:0:a");

    /* Back: the name of an address. */
    memset(&a, 0, sizeof(a));
    a.net.HostAddressLen = 6;
    /* Bert's address. */
    memcpy(a.room + 4, "\2\0\0\0\0\x0b", 6);
    len = sizeof(name);
    CHECK_OK(VipNSGetHostByAddr(o.nic, &a.net, name, &len));
    CHECK(!strcmp(name, "bert") && len == 5);
    len = 4;
    CHECK_RET(VipNSGetHostByAddr(o.nic, &a.net, name, &len), VIP_ERROR_RESOURCE);
    CHECK_EQ(len, 5); /* so much it takes */
    len = 0;
    CHECK_RET(VipNSGetHostByAddr(o.nic, &a.net, NULL, &len), VIP_ERROR_RESOURCE);
    CHECK_EQ(len, 5);
    CHECK_RET(VipNSGetHostByAddr(o.nic, &a.net, NULL, NULL), VIP_INVALID_PARAMETER);
    /* An address that no host has. */
    a.room[9] = 0x77;
    CHECK_RET(VipNSGetHostByAddr(o.nic, &a.net, name, &len), VIP_ERROR_NAMESERVICE);
    memcpy(a.room + 4, o.attr.LocalNicAddress, 6);
    len = sizeof(name);
    CHECK_OK(VipNSGetHostByAddr(o.nic, &a.net, name, &len)); /* our own name */
    CHECK(strlen(name) > 0 && len == strlen(name) + 1);

    CHECK_OK(VipNSShutdown(o.nic));
    expect_host(&o, "anna", 0, "2:0:0:0:0:a");
    /* A file that cannot be read, and one with a line that says nothing: refused when it is named, not when a name is
     * looked up. */
    CHECK_RET(VipNSInit(o.nic, (VIP_PVOID) "/no/such/file"), VIP_ERROR_NAMESERVICE);
    path = write_file("broken", "anna\n");
    CHECK_RET(VipNSInit(o.nic, path), VIP_ERROR_NAMESERVICE);
    CHECK(strstr(viakit_last_error(), "broken:1") != NULL);
    /* A list names hosts on a wire. On one machine every label is that machine. */
    setenv("VIAKIT_HOSTS", "anna=02:00:00:00:00:dd;bert=02:00:00:00:00:de", 1);
    expect_host(&o, "anna", 0, NULL);
    unsetenv("VIAKIT_HOSTS");
    close_objects(&o);
}

/* ---------------------------------------------------------------- discovery */

static void test_discovery(void)
{
    objects o;
    VIP_AUTODISCOVERY_LIST list;
    open_objects(&o);
    memset(&list, 0xEE, sizeof(list));
    CHECK_RET(VipQuerySystemManagementInfo(o.nic, 2, &list), VIP_INVALID_PARAMETER);
    CHECK_RET(VipQuerySystemManagementInfo(o.nic, VIP_SMI_AUTODISCOVERY, NULL), VIP_INVALID_PARAMETER);
    CHECK_RET(VipQuerySystemManagementInfo(NULL, VIP_SMI_AUTODISCOVERY, &list), VIP_INVALID_PARAMETER);
    /* Twice: the list belongs to the NIC and may be requested again. */
    for (int i = 0; i < 2; i++) {
        CHECK_OK(VipQuerySystemManagementInfo(o.nic, VIP_SMI_AUTODISCOVERY, &list));
        CHECK_EQ(list.NumAdAddrs, 1);
        CHECK_EQ(list.NumberOfHops, 0);
        CHECK_EQ(list.ADAddrArray->HostAddressLen, 6);
        CHECK_EQ(list.ADAddrArray->DiscriminatorLen, 0);
        CHECK(!memcmp((char *)list.ADAddrArray + 4, o.attr.LocalNicAddress, 6));
    }
    close_objects(&o);
}

int main(void)
{
    check_deadline(60);
    snprintf(check_context, sizeof(check_context), "calls");
    CHECK(mkdtemp(folder) != NULL);
    setenv("XDG_CONFIG_HOME", folder, 1); /* not the tester's own */
    unsetenv("VIAKIT_HOSTS");
    unsetenv("VIAKIT_DEVICES");
    unsetenv("VIAKIT_CONFIG");
    test_set_attributes();
    test_resize();
    test_hosts();
    test_discovery();
    test_devices();
    static const char *const files[] = {"viakit.conf", "bad.conf", "long.conf", "hosts", "site", "broken", NULL};
    for (const char *const *name = files; *name; name++) {
        char path[256];
        snprintf(path, sizeof(path), "%s/%s", folder, *name);
        unlink(path);
    }
    CHECK_EQ(rmdir(folder), 0);
    CHECK_NOTHING_LEFT();
    return 0;
}
