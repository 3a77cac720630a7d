/*
 * life_wire.c - cases of test_life: an interface that goes down and comes up again, or whose MTU changes.
 */
#define _GNU_SOURCE
#include <net/if.h>
#include <sys/ioctl.h>
#include <sys/socket.h>

#include "test_life.h"

/* A request to the interface of this side's host. Returns 0, or -1 if the interface refuses it. */
static int with_interface(unsigned long request, struct ifreq *r)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), result;
    CHECK(fd >= 0);
    /* The interface of both hosts has this name; each is in a namespace of its own. */
    strcpy(r->ifr_name, "eth0");
    result = ioctl(fd, request, r);
    close(fd);
    return result;
}

static void set_interface(int up)
{
    struct ifreq r = {.ifr_flags = 0};
    CHECK_EQ(with_interface(SIOCGIFFLAGS, &r), 0);
    r.ifr_flags = (short)(up ? r.ifr_flags | IFF_UP : r.ifr_flags & ~IFF_UP);
    CHECK_EQ(with_interface(SIOCSIFFLAGS, &r), 0);
}

static void set_mtu(int mtu)
{
    struct ifreq r = {.ifr_mtu = mtu};
    CHECK_EQ(with_interface(SIOCSIFMTU, &r), 0);
}

/* ---- interface_down: the interface of one side goes down and soon up again. No message is missing. */

void interface_down_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    /* First A's interface goes down while A sends, then B's. */
    endpoint_connect(&e, "down");
    for (int whose = 0; whose < 2; whose++) {
        SIDE_SYNC(s, 1);
        if (whose == SIDE_A)
            set_interface(0);
        SIDE_SYNC(s, 2);
        uint64_t before = nic_counter(s, VIAKIT_COUNTER_timeouts);
        life_post_all(&e, d);
        /* Two time-outs: frames were lost, and lost again. */
        WAIT_UNTIL(nic_counter(s, VIAKIT_COUNTER_timeouts) >= before + 2);
        if (whose == SIDE_A)
            set_interface(1);
        SIDE_SYNC(s, 3);
        life_all_sent(&e, d);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void interface_down_b(side *s)
{
    endpoint e;
    life_prepare(&e, s, NULL, VIP_SERVICE_RELIABLE_DELIVERY, 2);
    endpoint_connect(&e, "down");
    for (int whose = 0; whose < 2; whose++) {
        SIDE_SYNC(s, 1);
        if (whose == SIDE_B)
            set_interface(0);
        SIDE_SYNC(s, 2);
        SIDE_SYNC(s, 3);
        if (whose == SIDE_B)
            set_interface(1);
        life_all_received(&e);
    }
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- interface_down_long: both sides lose the connection. When the wire is back, the same NICs connect again. */

void interface_down_long_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    endpoint_connect(&e, "down");
    SIDE_SYNC(s, 1);
    set_interface(0);
    /* Gone for longer than the options allow. They are the defaults, because the second connection must outlive times
     * in which a busy machine gives a side no core. */
    double begin = check_now();
    life_post_all(&e, d);
    life_over(&e, 1);
    life_report(s, "given up", begin);
    SIDE_SYNC(s, 2);
    set_interface(1);
    SIDE_SYNC(s, 3);
    /* The NICs are the same, and so is the VI. */
    endpoint_connect(&e, "up again");
    life_post_all(&e, d);
    life_all_sent(&e, d);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void interface_down_long_b(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    endpoint_connect(&e, "down");
    SIDE_SYNC(s, 1);
    double begin = check_now();
    life_over(&e, 1);
    life_report(s, "given up", begin);
    /* B's receives were flushed with the connection. */
    for (int i = 0; i < LIFE_MESSAGES; i++) /* they came back unused */
        post_recv(&e, prep_recv(&e, d[i], d[i]->DS[0].Local.Data.Address, ROOM));
    SIDE_SYNC(s, 2);
    SIDE_SYNC(s, 3);
    endpoint_connect(&e, "up again");
    life_all_received(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- mtu_lowered: frames longer than the MTU are lost until the MTU is raised again */

void mtu_lowered_a(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    endpoint_connect(&e, "mtu");
    /* 576 is the least that IPv4 knows; the frames that A made for 1500 do not fit. */
    set_mtu(576);
    uint64_t before = nic_counter(s, VIAKIT_COUNTER_timeouts);
    life_post_all(&e, d);
    /* Lost, or through: between hosts of one machine a super-frame is never cut, and UDP cuts to what the wire
     * takes. */
    WAIT_UNTIL(nic_counter(s, VIAKIT_COUNTER_timeouts) >= before + 2 ||
               __atomic_load_n(&d[LIFE_MESSAGES - 1]->CS.Status, __ATOMIC_ACQUIRE));
    set_mtu(s->link->mtu);
    life_all_sent(&e, d);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void mtu_lowered_b(side *s)
{
    endpoint e;
    life_prepare(&e, s, NULL, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    endpoint_connect(&e, "mtu");
    life_all_received(&e);
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

/* ---- mtu_raised: on both hosts, under way. The connection goes on with the frames it began with; a NIC opened
 * later uses longer ones */

static void mtu_raised_both(side *s)
{
    endpoint e;
    VIP_DESCRIPTOR *d[LIFE_MESSAGES];
    viakit_nic_info before, after;
    VIP_NIC_HANDLE later;
    life_prepare(&e, s, d, VIP_SERVICE_RELIABLE_DELIVERY, 1);
    CHECK_OK(viakit_query_nic(s->nic, &before));
    endpoint_connect(&e, "mtu");
    SIDE_SYNC(s, 1);
    /* Under way: A's messages are posted, then both wires change. */
    if (s->role == SIDE_A)
        life_post_all(&e, d);
    set_mtu(4 * s->link->mtu);
    SIDE_SYNC(s, 2);
    if (s->role == SIDE_A)
        life_all_sent(&e, d);
    else
        life_all_received(&e);
    /* A NIC that is opened now sees the new wire. */
    CHECK_OK(viakit_open_nic(s->device, &s->options, &later));
    CHECK_OK(viakit_query_nic(later, &after));
    CHECK_EQ(after.mtu, 4 * s->link->mtu);
    CHECK(after.mtu > before.mtu && after.max_payload >= before.max_payload);
    CHECK_OK(VipCloseNic(later));
    endpoint_disconnect(&e);
    endpoint_close(&e);
}

void mtu_raised_a(side *s)
{
    mtu_raised_both(s);
}

void mtu_raised_b(side *s)
{
    mtu_raised_both(s);
}
