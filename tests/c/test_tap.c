/*
 * test_tap.c - the ring of records and the tap's calls, on loop: every lost record is counted, a consumer that reads
 * all the time gets no torn record, and wrong calls return errors.
 *
 * Between the NIC (which writes) and the tap's thread (which reads) there is a ring without locks. Each record carries
 * its number and bytes that follow from it, so a record that is read too early, or overwritten while it is read, shows.
 */
#include <pthread.h>

#include "base/ring.h"
#include "check.h"

#define N 200000

struct record {
    struct vk_record head;
    uint64_t number;
    uint8_t bytes[];
};

/* ---- the ring: one thread writes records of many lengths, the other reads them in order and whole */

static struct vk_ring ring;

static void *produce(void *unused)
{
    (void)unused;
    /* Lengths of 0 to 299 bytes, so that records meet the ring's end at every place. */
    for (uint64_t i = 0; i < N; i++) {
        uint32_t len = (uint32_t)(i * 7919 % 300);
        struct record *r = vk_ring_reserve(&ring, (uint32_t)sizeof *r + len, 1);
        /* Full: the ring counts it as lost, and the producer does not wait. */
        if (r == NULL)
            continue;
        r->number = i;
        memset(r->bytes, (int)(i & 255), len);
        vk_ring_show(&ring);
    }
    return NULL;
}

static uint64_t consume_one(uint64_t least)
{
    const struct vk_record *head = vk_ring_next(&ring);
    if (head == NULL)
        return 0;
    const struct record *r = (const struct record *)(const void *)head;
    uint32_t len = (uint32_t)(r->number * 7919 % 300);
    /* Losses leave gaps, but the order stays. */
    CHECK(r->number >= least);
    CHECK_EQ(head->size, (sizeof *r + len + 7) & ~7ul);
    for (uint32_t i = 0; i < len; i++)
        CHECK_EQ(r->bytes[i], r->number & 255);
    uint64_t next = r->number + 1;
    vk_ring_consume(&ring, head);
    return next;
}

static void test_ring(void)
{
    pthread_t producer;
    uint64_t got = 0, next = 0, after;
    /* Sizes are rounded up to a power of two. */
    CHECK(vk_ring_init(&ring, 5000) == 0);
    CHECK_EQ(ring.size, 8192);
    CHECK(vk_ring_reserve(&ring, 9000, 1) == NULL); /* will never fit */
    CHECK_EQ(ring.lost, 1);
    CHECK(pthread_create(&producer, NULL, produce, NULL) == 0);
    /* One was lost on purpose before. */
    while (next < N && got + vk_load_relaxed(&ring.lost) - 1 < N)
        if ((after = consume_one(next)) != 0) {
            next = after;
            got++;
        } else
            sched_yield();
    CHECK(pthread_join(producer, NULL) == 0);
    while ((after = consume_one(next)) != 0) {
        next = after;
        got++;
    }
    CHECK(got > 0); /* the first one found the ring empty */
    CHECK_EQ(got + ring.lost - 1, N);
    vk_ring_fini(&ring);
}

/* Held records are not visible before they are released. */
static void test_hold(void)
{
    CHECK(vk_ring_init(&ring, 4096) == 0);
    vk_ring_hold(&ring);
    struct record *r = vk_ring_reserve(&ring, sizeof *r, 1);
    r->number = 1;
    vk_ring_show(&ring);
    CHECK(vk_ring_next(&ring) == NULL);
    r->number = 2;
    vk_ring_release(&ring);
    CHECK_EQ(((const struct record *)(const void *)vk_ring_next(&ring))->number, 2);
    vk_ring_fini(&ring);
}

/* ---- the calls */

static void test_calls(void)
{
    VIP_NIC_HANDLE nic;
    static uint8_t buffer[65536];
    viakit_tap_info info;
    size_t n = 1;
    CHECK_OK(VipOpenNic("loop:tap", &nic));
    CHECK_RET(viakit_tap_open(NULL, NULL, NULL), VIP_INVALID_PARAMETER);
    CHECK_RET(viakit_tap_close(nic), VIP_INVALID_STATE);
    CHECK_RET(viakit_tap_flush(nic), VIP_INVALID_STATE);
    CHECK_RET(viakit_tap_read(nic, buffer, sizeof buffer, &n), VIP_INVALID_STATE);
    CHECK_RET(viakit_query_tap(nic, &info), VIP_INVALID_STATE);
    /* A file that cannot be made. */
    CHECK_RET(viakit_tap_open(nic, "/nowhere/x.pcapng", NULL), VIP_ERROR_RESOURCE);
    CHECK_RET(viakit_tap_open(nic, "", NULL), VIP_ERROR_RESOURCE);
    CHECK_OK(viakit_tap_open(nic, NULL, NULL));
    CHECK_RET(viakit_tap_open(nic, NULL, NULL), VIP_INVALID_STATE);
    CHECK_RET(viakit_tap_read(nic, NULL, 1, &n), VIP_INVALID_PARAMETER);
    /* pcapng begins with a section header, which a read gives whole or not at all. */
    CHECK_RET(viakit_tap_read(nic, buffer, 10, &n), VIP_INVALID_PARAMETER); /* not even the section's header fits */
    CHECK_OK(viakit_tap_read(nic, buffer, sizeof buffer, &n));
    /* Its type as pcapng writes it, so that no transfer as text goes unnoticed. */
    CHECK(n > 100 && memcmp(buffer, "\n\r\r\n", 4) == 0);
    /* Read once; no frames have passed since. */
    CHECK_OK(viakit_tap_read(nic, buffer, sizeof buffer, &n));
    CHECK_EQ(n, 0);
    CHECK_RET(viakit_query_tap(nic, NULL), VIP_INVALID_PARAMETER);
    CHECK_OK(viakit_query_tap(nic, &info));
    CHECK_EQ(info.file[0], 0);
    CHECK_OK(viakit_tap_close(nic));
    CHECK_OK(viakit_tap_open(nic, NULL, NULL)); /* closed with the NIC */
    CHECK_OK(VipCloseNic(nic));
    CHECK_RET(viakit_tap_close(nic), VIP_INVALID_PARAMETER);
}

int main(void)
{
    check_deadline(60);
    test_ring();
    test_hold();
    test_calls();
    return 0;
}
