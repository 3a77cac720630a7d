/*
 * test_handles.c - every function with wrong handles: the call returns an error, changes nothing and never crashes.
 *
 * Wrong handles are NULL, values that never were handles, handles of closed objects, and handles of other kinds of
 * objects.
 */
#include "api_objects.h"

/* Every function that takes a NIC, with everything else in order. */
static void try_nic(VIP_NIC_HANDLE nic, objects *o)
{
    VIP_NIC_ATTRIBUTES attr;
    VIP_PROTECTION_HANDLE ptag;
    VIP_MEM_HANDLE mh;
    VIP_MEM_ATTRIBUTES mem_attr = {0};
    VIP_VI_HANDLE vi;
    VIP_CQ_HANDLE cq;
    VIP_CONN_HANDLE conn;
    VIP_VI_ATTRIBUTES remote_attr;
    VIP_UINT64 counters[VIAKIT_N_COUNTERS];
    viakit_nic_info info;
    address local, remote;
    VIP_AUTODISCOVERY_LIST list;
    viakit_faults faults = {.size = sizeof(faults)};
    viakit_tap_info tap;
    char name[64];
    VIP_ULONG name_len = sizeof(name);
    size_t len;
    void *p;
    int n;
    own_address(o, &local, "x");
    CHECK_RET(VipCloseNic(nic), bad);
    CHECK_RET(VipQueryNic(nic, &attr), bad);
    CHECK_RET(VipErrorCallback(nic, NULL, ignore_error), bad);
    CHECK_RET(VipCreatePtag(nic, &ptag), bad);
    CHECK_RET(VipDestroyPtag(nic, o->ptag), bad);
    CHECK_RET(VipRegisterMem(nic, o->mem, 64, &mem_attr, &mh), bad);
    CHECK_RET(VipDeregisterMem(nic, o->mem, o->mh), bad);
    CHECK_RET(VipQueryMem(nic, o->mem, o->mh, &mem_attr), bad);
    CHECK_RET(VipSetMemAttributes(nic, o->mem, o->mh, &mem_attr), bad);
    CHECK_RET(VipCreateVi(nic, &o->vi_attr, NULL, NULL, &vi), bad);
    CHECK_RET(VipCreateCQ(nic, 16, &cq), bad);
    CHECK_RET(VipConnectWait(nic, &local.net, 0, &remote.net, &remote_attr, &conn), bad);
    CHECK_RET(VipNSInit(nic, NULL), bad);
    CHECK_RET(VipNSGetHostByName(nic, (VIP_CHAR *)"localhost", &remote.net, 0), bad);
    CHECK_RET(VipNSShutdown(nic), bad);
    CHECK_RET(viakit_query_nic(nic, &info), bad);
    CHECK_RET(viakit_poll(nic, &n), bad);
    CHECK_RET(viakit_alloc(nic, 64, &p), bad);
    CHECK_RET(viakit_free(nic, o->mem), bad);
    CHECK_RET(viakit_nic_counters(nic, counters), bad);
    CHECK_RET(viakit_set_frame_filter(nic, NULL, NULL), bad);
    CHECK_RET(VipNSGetHostByAddr(nic, &local.net, name, &name_len), bad);
    CHECK_RET(VipQuerySystemManagementInfo(nic, VIP_SMI_AUTODISCOVERY, &list), bad);
    CHECK_RET(viakit_snapshot(nic, name, sizeof(name), &len), bad);
    CHECK_RET(viakit_set_faults(nic, NULL), bad);
    CHECK_RET(viakit_get_faults(nic, &faults, &n), bad);
    CHECK_RET(viakit_tap_open(nic, NULL, NULL), bad);
    CHECK_RET(viakit_tap_read(nic, name, sizeof(name), &len), bad);
    CHECK_RET(viakit_tap_flush(nic), bad);
    CHECK_RET(viakit_query_tap(nic, &tap), bad);
    CHECK_RET(viakit_tap_close(nic), bad);
    CHECK(strlen(viakit_last_error()) > 0);
}

static void never_called(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_DESCRIPTOR *d)
{
    (void)context, (void)nic, (void)vi, (void)d;
    FAIL("a handler was called that no call has taken");
}

static void no_entry(VIP_PVOID context, VIP_NIC_HANDLE nic, VIP_VI_HANDLE vi, VIP_BOOLEAN recv)
{
    (void)recv;
    never_called(context, nic, vi, NULL);
}

/* Every function that takes a VI. Its last two return nothing that could be judged: they must only not crash. */
static void try_vi(VIP_VI_HANDLE vi, objects *o)
{
    VIP_VI_STATE state;
    VIP_VI_ATTRIBUTES attr;
    VIP_BOOLEAN x, y;
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)o->mem, *got;
    VIP_UINT64 counters[VIAKIT_N_COUNTERS];
    viakit_vi_info info;
    address local, remote;
    own_address(o, &local, "x");
    own_address(o, &remote, "x");
    CHECK_RET(VipDestroyVi(vi), bad);
    CHECK_RET(VipQueryVi(vi, &state, &attr, &x, &y), bad);
    CHECK_RET(VipPostSend(vi, d, o->mh), bad);
    CHECK_RET(VipPostRecv(vi, d, o->mh), bad);
    CHECK_RET(VipSendDone(vi, &got), bad);
    CHECK_RET(VipRecvDone(vi, &got), bad);
    CHECK_RET(VipSendWait(vi, 10, &got), bad);
    CHECK_RET(VipRecvWait(vi, 10, &got), bad);
    CHECK_RET(VipConnectRequest(vi, &local.net, &remote.net, 10, &attr), bad);
    CHECK_RET(VipDisconnect(vi), bad);
    CHECK_RET(viakit_vi_counters(vi, counters), bad);
    CHECK_RET(viakit_query_vi(vi, &info), bad);
    CHECK_RET(VipSetViAttributes(vi, &o->vi_attr), bad);
    CHECK_RET(VipConnectPeerRequest(vi, &local.net, &remote.net, 10), bad);
    CHECK_RET(VipConnectPeerDone(vi, &attr), bad);
    CHECK_RET(VipConnectPeerWait(vi, &attr), bad);
    CHECK_RET(VipSendNotify(vi, NULL, never_called), bad);
    CHECK_RET(VipRecvNotify(vi, NULL, never_called), bad);
    CHECK_RET(VipPostDeferredSends(vi, VIP_TRUE, &x), bad);
    CHECK(VipGetUserData(vi) == NULL);
    VipSetUserData(vi, &local);
}

/* Every function that takes a completion queue. To VipCreateVi NULL means none, which is no error. */
static void try_cq(VIP_CQ_HANDLE cq, objects *o)
{
    VIP_VI_HANDLE vi;
    VIP_BOOLEAN recv;
    CHECK_RET(VipDestroyCQ(cq), bad);
    CHECK_RET(VipCQDone(cq, &vi, &recv), bad);
    CHECK_RET(VipCQWait(cq, 10, &vi, &recv), bad);
    CHECK_RET(VipResizeCQ(cq, 32), bad);
    CHECK_RET(VipCQNotify(cq, NULL, no_entry), bad);
    CHECK_RET(VipAddTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)-1, 1, 0), bad);
    CHECK_RET(VipRemoveTagCQ(cq, (VIP_EVENT_HANDLE)(intptr_t)-1, 1), bad);
    if (cq)
        CHECK_RET(VipCreateVi(o->nic, &o->vi_attr, cq, NULL, &vi), bad);
}

/* Both functions that take a connection handle. */
static void try_conn(VIP_CONN_HANDLE conn, objects *o)
{
    CHECK_RET(VipConnectAccept(conn, o->vi), bad);
    CHECK_RET(VipConnectReject(conn), bad);
}

static void test_handles(void)
{
    objects o, old;
    void *wrong[8];
    int n = 0;
    open_objects(&old);
    close_objects(&old);
    open_objects(&o);
    CHECK(old.nic != o.nic && old.vi != o.vi && old.cq != o.cq && old.ptag != o.ptag);
    /* Values that never were handles: NULL, small, large, an unmapped address, and an address of the program. */
    wrong[n++] = NULL;
    wrong[n++] = (void *)1;
    wrong[n++] = (void *)~(uintptr_t)0;
    wrong[n++] = (void *)(uintptr_t)0x7fffdeadbeef;
    wrong[n++] = o.mem;
    for (int i = 0; i < n; i++) {
        try_nic(wrong[i], &o);
        try_vi(wrong[i], &o);
        try_cq(wrong[i], &o);
        try_conn(wrong[i], &o);
        if (wrong[i])
            CHECK_RET(VipDestroyPtag(o.nic, wrong[i]), bad);
    }
    /* Handles of closed objects. A NIC and its objects have been created in the same places since. */
    try_nic(old.nic, &o);
    try_vi(old.vi, &o);
    try_cq(old.cq, &o);
    CHECK_RET(VipDestroyPtag(o.nic, old.ptag), bad);
    /* Handles of the wrong kind. */
    try_nic(o.vi, &o);
    try_nic(o.cq, &o);
    try_nic(o.ptag, &o);
    try_vi(o.nic, &o);
    try_vi(o.cq, &o);
    try_cq(o.nic, &o);
    try_cq(o.vi, &o);
    try_conn(o.vi, &o);
    CHECK_RET(VipDestroyPtag(o.nic, o.vi), bad);
    close_objects(&o);
}

int main(void)
{
    snprintf(check_context, sizeof(check_context), "handles");
    check_deadline(120);
    test_handles();
    CHECK_NOTHING_LEFT();
    return 0;
}
