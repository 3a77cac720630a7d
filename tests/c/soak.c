/*
 * soak.c - many messages over bad links: soak LINK [CASE...], see harness.h for LINK; "+fault" is what it is about.
 *
 * A sends numbered messages of mixed sizes, short ones mostly and now and then one of many frames; B looks at every
 * byte of each. At the reliable levels every message has to arrive, once, unaltered and in its turn; at the unreliable
 * one each message that arrives is whole and in order. The first violation ends the test. B's credits for A's sends are
 * messages, too, so that both directions carry data.
 *
 * Memory must not grow with the number of messages: the peak after all of them is compared with the peak after a tenth.
 * With RDMA read the roles are reversed: B writes numbered messages into its own memory and notifies A, and A reads and
 * checks them. The harness ensures that no object, file descriptor or mapping is left.
 *
 * VIAKIT_SOAK_MESSAGES is the number per case; the default is a few thousand. Each side prints its counters.
 */
#include <sched.h>
#include <sys/resource.h>

#include "harness.h"

#define LONGEST (192u << 10)
#define N_SLOTS 24         /* messages under way, at most: receives posted on B */
#define CREDIT 8           /* B gives credit for so many at a time */
#define STALL_S 120        /* for a hundredth of the messages, at most */
#define GROWTH (24u << 20) /* bytes of memory that may be added after a tenth of the messages, at most */

static uint64_t n_messages(void)
{
    const char *given = getenv("VIAKIT_SOAK_MESSAGES");
    uint64_t n = given ? strtoull(given, NULL, 0) : 2500 / CHECK_SLOWER;
    /* Fewer would leave the hundredths and tenths below empty. */
    return n < 50 ? 50 : n;
}

/* In a hundred messages, sixty have less than 256 bytes, thirty a few frames, nine many, and one very many. */
static size_t length_of(uint64_t i)
{
    uint64_t state = i * 0x9E3779B97F4A7C15ull + 1, die = random_next(&state) % 100, more = random_next(&state);
    return die < 60 ? more % 256 : die < 90 ? more % 4096 : die < 99 ? more % 32768 : more % (LONGEST + 1);
}

/* ---------------------------------------------------------------- what it cost */

static size_t peak_memory(void)
{
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return (size_t)u.ru_maxrss << 10;
}

/* Counts for a side's last line: bytes of its messages, whole and partial messages, counters at the beginning. */
typedef struct {
    side *s;
    size_t warm; /* peak after a tenth */
    double begin;
    uint64_t bytes, whole, broken;
    VIP_UINT64 before[VIAKIT_N_COUNTERS];
} record;

static void record_begin(record *r, side *s)
{
    memset(r, 0, sizeof(*r));
    r->s = s;
    check_deadline(STALL_S);
    r->begin = check_now();
    CHECK_OK(viakit_nic_counters(s->nic, r->before));
}

/* Message i of n is over. However slow the machine, each hundredth part has the same time. */
static void record_progress(record *r, uint64_t i, uint64_t n)
{
    if (i % (n / 100 + 1) == 0)
        check_deadline(STALL_S);
    if (i == n / 10)
        r->warm = peak_memory();
}

static void record_end(record *r)
{
    static const struct {
        viakit_counter counter;
        const char *name;
    } shown[] = {
        {VIAKIT_COUNTER_fault_dropped, "lost"},      {VIAKIT_COUNTER_fault_duplicated, "doubled"},
        {VIAKIT_COUNTER_fault_reordered, "late"},    {VIAKIT_COUNTER_fault_corrupted, "damaged"},
        {VIAKIT_COUNTER_frames_sent, "frames sent"}, {VIAKIT_COUNTER_frames_retransmitted, "of them again"},
        {VIAKIT_COUNTER_timeouts, "time-outs"},
    };
    VIP_UINT64 now[VIAKIT_N_COUNTERS];
    char faults[300] = "";
    size_t peak = peak_memory();
    CHECK_OK(viakit_nic_counters(r->s->nic, now));
    for (size_t i = 0; i < sizeof(shown) / sizeof(*shown); i++)
        snprintf(faults + strlen(faults), sizeof(faults) - strlen(faults), "%s %llu %s", i ? "," : "",
                 (unsigned long long)(now[shown[i].counter] - r->before[shown[i].counter]), shown[i].name);
    printf(
        "       %s %s %c: %llu messages whole, %llu broken, %.1f MB in %.1f s; violations 0;%s; peak memory %.1f MiB, "
        "%.1f since a tenth\n",
        r->s->link->name, r->s->test->name, r->s->role == SIDE_A ? 'A' : 'B', (unsigned long long)r->whole,
        (unsigned long long)r->broken, (double)r->bytes / 1e6, check_now() - r->begin, faults, (double)peak / 1048576,
        (double)(peak - r->warm) / 1048576);
    fflush(stdout);
    /* A peak never falls, so the comparison sees the largest that it ever was. */
    if (peak - r->warm > GROWTH)
        FAIL("memory grew by %zu bytes after the first tenth", peak - r->warm);
}

/* ---------------------------------------------------------------- the reliable levels */

/* The head of a work queue if it is done; it must be without error. */
static VIP_DESCRIPTOR *taken(VIP_RETURN code, VIP_DESCRIPTOR *d, const char *what, uint64_t i)
{
    if (code == VIP_NOT_DONE || (code == VIP_DESCRIPTOR_ERROR && d == NULL)) /* nothing yet, or nothing posted */
        return NULL;
    if (code != VIP_SUCCESS)
        FAIL("%s near message %llu completed with %s, status 0x%x", what, (unsigned long long)i,
             check_return_name(code), d ? d->CS.Status : 0);
    return d;
}

static VIP_DESCRIPTOR *send_done(endpoint *e, uint64_t i)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = VipSendDone(e->vi, &d);
    return taken(code, d, "a send", i);
}

static VIP_DESCRIPTOR *recv_done(endpoint *e, uint64_t i)
{
    VIP_DESCRIPTOR *d = NULL;
    VIP_RETURN code = VipRecvDone(e->vi, &d);
    return taken(code, d, "a receive", i);
}

typedef enum { BY_SEND, BY_WRITE } how;

static void flood_a(side *s, VIP_RELIABILITY_LEVEL level, how way)
{
    endpoint e;
    record r;
    /* As many as B has receives for, to begin with. */
    uint64_t n = n_messages(), credit = N_SLOTS, sent = 0, done = 0, target, handle;
    VIP_DESCRIPTOR *d[N_SLOTS], *c;
    uint8_t *data[N_SLOTS];
    record_begin(&r, s);
    endpoint_open(&e, s, level, 65536 + N_SLOTS * (LONGEST + 1024));
    for (int i = 0; i < N_SLOTS; i++) {
        d[i] = descriptor(&e, 2);
        data[i] = buffer(&e, LONGEST);
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), NULL, 0)); /* for credits: more than can be under way */
    }
    endpoint_connect(&e, "soak");
    /* Where RDMA writes go, and by which handle. */
    target = side_exchange(s, 0);
    handle = side_exchange(s, 0);
    while (done < n) {
        int idle = 1;
        /* Three limits: all of them, B's credit, and our own slots. */
        if (sent < n && sent < credit && sent - done < N_SLOTS) {
            int slot = (int)(sent % N_SLOTS);
            size_t len = length_of(sent);
            pattern_fill(data[slot], len, sent);
            if (way == BY_WRITE)
                prep_write(&e, d[slot], data[slot], len, target + (uint64_t)slot * LONGEST, (VIP_MEM_HANDLE)handle);
            else
                prep_send(&e, d[slot], data[slot], len);
            d[slot]->CS.Control |= VIP_CONTROL_IMMEDIATE;
            d[slot]->CS.ImmediateData = (VIP_UINT32)sent;
            post_send(&e, d[slot]);
            r.bytes += len;
            sent++;
            idle = 0;
        }
        while ((c = send_done(&e, done)) != NULL) {
            CHECK(c == d[done % N_SLOTS]);
            record_progress(&r, done++, n);
            idle = 0;
        }
        /* Each credit names the messages that B has taken; so none is lost or doubled either. */
        while ((c = recv_done(&e, done)) != NULL) {
            credit += CREDIT;
            CHECK_EQ(c->CS.ImmediateData, (VIP_UINT32)(credit - N_SLOTS));
            post_recv(&e, prep_recv(&e, c, NULL, 0));
            idle = 0;
        }
        if (idle)
            sched_yield();
    }
    r.whole = done;
    SIDE_SYNC(s, 1);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    record_end(&r);
}

static void flood_b(side *s, VIP_RELIABILITY_LEVEL level, how way)
{
    endpoint e;
    record r;
    uint64_t n = n_messages(), credits_sent = 0, credits_done = 0;
    VIP_DESCRIPTOR *credit[N_SLOTS], *d;
    uint8_t *data[N_SLOTS], *all;
    record_begin(&r, s);
    endpoint_open(&e, s, level, 65536 + N_SLOTS * (LONGEST + 1024));
    all = buffer(&e, N_SLOTS * LONGEST);
    for (int i = 0; i < N_SLOTS; i++) {
        data[i] = all + i * LONGEST;
        credit[i] = descriptor(&e, 1);
        /* A write with immediate data consumes a receive, and brings nothing into it. */
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), data[i], way == BY_WRITE ? 0 : LONGEST));
    }
    endpoint_connect(&e, "soak");
    side_exchange(s, (uintptr_t)all);
    side_exchange(s, e.mh);
    for (uint64_t i = 0; i < n;) {
        if ((d = recv_done(&e, i)) == NULL) {
            if (send_done(&e, i) != NULL)
                credits_done++;
            else
                sched_yield();
            continue;
        }
        size_t len = length_of(i);
        CHECK_EQ(d->CS.ImmediateData, (VIP_UINT32)i);
        CHECK_EQ(d->CS.Length, way == BY_WRITE ? 0 : len);
        pattern_check(data[i % N_SLOTS], len, i);
        post_recv(&e, prep_recv(&e, d, data[i % N_SLOTS], way == BY_WRITE ? 0 : LONGEST));
        r.bytes += len;
        record_progress(&r, i++, n);
        /* A credit for every eighth. */
        if (i % CREDIT)
            continue;
        /* A took them before it sent on; but while messages keep arriving, these are not checked for long. */
        WAIT_UNTIL(credits_sent - credits_done < N_SLOTS || (send_done(&e, i) != NULL && ++credits_done == 0));
        VIP_DESCRIPTOR *c = prep_send(&e, credit[credits_sent++ % N_SLOTS], NULL, 0);
        c->CS.Control |= VIP_CONTROL_IMMEDIATE;
        c->CS.ImmediateData = (VIP_UINT32)i;
        post_send(&e, c);
    }
    r.whole = n;
    /* The last credits have been taken as well, before the connection ends. */
    WAIT_UNTIL(credits_done == credits_sent || (send_done(&e, n) != NULL && ++credits_done == credits_sent));
    SIDE_SYNC(s, 1);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    record_end(&r);
}

#define FLOOD(name, level, way)   \
    static void name##_a(side *s) \
    {                             \
        flood_a(s, level, way);   \
    }                             \
    static void name##_b(side *s) \
    {                             \
        flood_b(s, level, way);   \
    }

FLOOD(delivery, VIP_SERVICE_RELIABLE_DELIVERY, BY_SEND)
FLOOD(reception, VIP_SERVICE_RELIABLE_RECEPTION, BY_SEND)
FLOOD(delivery_write, VIP_SERVICE_RELIABLE_DELIVERY, BY_WRITE)
FLOOD(reception_write, VIP_SERVICE_RELIABLE_RECEPTION, BY_WRITE)

/* ---------------------------------------------------------------- RDMA reads: B writes into slots of its own
 * memory, A fetches what is there */

/* The memory and the VI must both allow it. */
static void make_readable(endpoint *e)
{
    VIP_MEM_ATTRIBUTES attr = {.Ptag = e->ptag, .EnableRdmaWrite = VIP_TRUE, .EnableRdmaRead = VIP_TRUE};
    CHECK_OK(VipSetMemAttributes(e->s->nic, e->mem, e->mh, &attr));
    e->attr.EnableRdmaRead = VIP_TRUE;
    CHECK_OK(VipSetViAttributes(e->vi, &e->attr));
}

/* A word in immediate data: how many messages are there (B's), or fetched (A's). */
static void send_word(endpoint *e, VIP_DESCRIPTOR *d, uint64_t n)
{
    prep_send(e, d, NULL, 0);
    d->CS.Control |= VIP_CONTROL_IMMEDIATE;
    d->CS.ImmediateData = (VIP_UINT32)n;
    post_send(e, d);
}

/* Takes the partner's notifications in order. Returns the last one, or `known` if there is no new one. */
static uint64_t told(endpoint *e, uint64_t known, uint64_t n)
{
    VIP_DESCRIPTOR *d;
    while ((d = recv_done(e, known)) != NULL) {
        known += n - known < CREDIT ? n - known : CREDIT;
        CHECK_EQ(d->CS.ImmediateData, (VIP_UINT32)known);
        post_recv(e, prep_recv(e, d, NULL, 0));
    }
    return known;
}

static void read_a(side *s, VIP_RELIABILITY_LEVEL level)
{
    endpoint e;
    record r;
    uint64_t n = n_messages(), there = 0, requested = 0, fetched = 0, words = 0, source, handle;
    VIP_DESCRIPTOR *d[N_SLOTS], *word[N_SLOTS], *c;
    uint8_t *data[N_SLOTS];
    record_begin(&r, s);
    endpoint_open(&e, s, level, 65536 + N_SLOTS * (LONGEST + 1024));
    for (int i = 0; i < N_SLOTS; i++) {
        d[i] = descriptor(&e, 2);
        word[i] = descriptor(&e, 1);
        data[i] = buffer(&e, LONGEST);
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), NULL, 0));
    }
    endpoint_connect(&e, "soak");
    source = side_exchange(s, 0);
    handle = side_exchange(s, 0);
    /* Reads start as B announces messages. Completions come in order, with A's own notes between them. */
    while (fetched < n) {
        there = told(&e, there, n);
        for (; requested < there; requested++) {
            int slot = (int)(requested % N_SLOTS);
            size_t len = length_of(requested);
            memset(data[slot], 0, len); /* what was there before must not be taken for it */
            prep_write(&e, d[slot], data[slot], len, source + (uint64_t)slot * LONGEST, (VIP_MEM_HANDLE)handle);
            d[slot]->CS.Control = VIP_CONTROL_OP_RDMAREAD;
            post_send(&e, d[slot]);
        }
        if ((c = send_done(&e, fetched)) == NULL) {
            sched_yield();
            continue;
        }
        if ((c->CS.Status & VIP_STATUS_OP_MASK) != VIP_STATUS_OP_RDMA_READ)
            continue; /* one of A's own notes */
        CHECK(c == d[fetched % N_SLOTS]);
        CHECK_EQ(c->CS.Length, length_of(fetched));
        pattern_check(data[fetched % N_SLOTS], length_of(fetched), fetched);
        r.bytes += length_of(fetched);
        record_progress(&r, fetched++, n);
        if (fetched % CREDIT == 0 || fetched == n)
            send_word(&e, word[words++ % N_SLOTS], fetched);
    }
    r.whole = fetched;
    SIDE_SYNC(s, 1);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    record_end(&r);
}

static void read_b(side *s, VIP_RELIABILITY_LEVEL level)
{
    endpoint e;
    record r;
    uint64_t n = n_messages(), there = 0, fetched = 0, words = 0;
    VIP_DESCRIPTOR *word[N_SLOTS];
    uint8_t *all;
    record_begin(&r, s);
    endpoint_open(&e, s, level, 65536 + N_SLOTS * (LONGEST + 1024));
    make_readable(&e);
    all = buffer(&e, N_SLOTS * LONGEST);
    for (int i = 0; i < N_SLOTS; i++) {
        word[i] = descriptor(&e, 1);
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), NULL, 0));
    }
    endpoint_connect(&e, "soak");
    side_exchange(s, (uintptr_t)all);
    side_exchange(s, e.mh);
    while (fetched < n) {
        /* Refills a slot only when A has said that it has fetched what was in it. */
        while (there < n && there - fetched < N_SLOTS) {
            pattern_fill(all + there % N_SLOTS * LONGEST, length_of(there), there);
            r.bytes += length_of(there);
            record_progress(&r, there++, n);
            if (there % CREDIT == 0 || there == n)
                send_word(&e, word[words++ % N_SLOTS], there);
        }
        while (send_done(&e, there) != NULL) {}
        sched_yield();
        fetched = told(&e, fetched, n);
    }
    r.whole = fetched;
    SIDE_SYNC(s, 1);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    record_end(&r);
}

#define READ(name, level)         \
    static void name##_a(side *s) \
    {                             \
        read_a(s, level);         \
    }                             \
    static void name##_b(side *s) \
    {                             \
        read_b(s, level);         \
    }

READ(delivery_read, VIP_SERVICE_RELIABLE_DELIVERY)
READ(reception_read, VIP_SERVICE_RELIABLE_RECEPTION)

/* ---------------------------------------------------------------- the unreliable level: in bursts that the receiver
 * has room for */

#define BURST 16

static void unreliable_a(side *s)
{
    endpoint e;
    record r;
    /* Whole bursts. */
    uint64_t n = n_messages() / BURST * BURST;
    VIP_DESCRIPTOR *d[BURST];
    uint8_t *data[BURST];
    record_begin(&r, s);
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 65536 + BURST * (LONGEST + 1024));
    for (int i = 0; i < BURST; i++) {
        d[i] = descriptor(&e, 1);
        data[i] = buffer(&e, LONGEST);
    }
    endpoint_connect(&e, "soak");
    /* A burst, then a word over the control channel, which is not lost, however bad the link. */
    for (uint64_t i = 0; i < n; i += BURST) {
        for (uint64_t k = i; k < i + BURST; k++) {
            size_t len = length_of(k);
            VIP_DESCRIPTOR *c = prep_send(&e, d[k - i], data[k - i], len);
            pattern_fill(data[k - i], len, k);
            c->CS.Control |= VIP_CONTROL_IMMEDIATE;
            c->CS.ImmediateData = (VIP_UINT32)k;
            post_send(&e, c);
            r.bytes += len;
        }
        for (uint64_t k = i; k < i + BURST; k++) {
            CHECK(next_send(&e) == d[k - i]);
            CHECK_EQ(d[k - i]->CS.Status & VIP_STATUS_ERROR_MASK, 0);
        }
        record_progress(&r, i / BURST, n / BURST);
        side_exchange(s, 0);
    }
    r.whole = n;
    endpoint_disconnect(&e);
    endpoint_close(&e);
    record_end(&r);
}

static void unreliable_b(side *s)
{
    endpoint e;
    record r;
    uint64_t n = n_messages() / BURST * BURST;
    int64_t last = -1;
    record_begin(&r, s);
    endpoint_open(&e, s, VIP_SERVICE_UNRELIABLE, 65536 + 2 * BURST * (LONGEST + 1024));
    for (int i = 0; i < 2 * BURST; i++)
        post_recv(&e, prep_recv(&e, descriptor(&e, 1), buffer(&e, LONGEST), LONGEST));
    endpoint_connect(&e, "soak");
    for (uint64_t i = 0; i < n; i += BURST) {
        VIP_DESCRIPTOR *d = NULL;
        VIP_RETURN code;
        side_recv(s, &(uint64_t){0}, sizeof(uint64_t)); /* the burst is out */
        /* What was late may come after a look that found nothing. */
        for (int looks = 0; looks < 3; looks++)
            while ((code = VipRecvDone(e.vi, &d)) != VIP_NOT_DONE) {
                CHECK(d != NULL);
                void *data = d->DS[0].Local.Data.Address;
                if (code == VIP_DESCRIPTOR_ERROR) { /* a part was lost, and the status reports it */
                    CHECK(d->CS.Status & (VIP_STATUS_PARTIAL_ERROR | VIP_STATUS_TRANSPORT_ERROR));
                    r.broken++;
                } else {
                    CHECK_OK(code);
                    /* Later than everything before it, and nothing of a burst that was not sent yet. */
                    CHECK((int64_t)d->CS.ImmediateData > last && d->CS.ImmediateData < i + BURST);
                    last = d->CS.ImmediateData;
                    CHECK_EQ(d->CS.Length, length_of((uint64_t)last));
                    pattern_check(data, d->CS.Length, (uint64_t)last);
                    r.bytes += d->CS.Length;
                    r.whole++;
                }
                post_recv(&e, prep_recv(&e, d, data, LONGEST));
            }
        record_progress(&r, i / BURST, n / BURST);
        side_send(s, &(uint64_t){0}, sizeof(uint64_t));
    }
    /* On the worst of links some messages of one frame survive. */
    CHECK(r.whole > n / 10);
    endpoint_disconnect(&e);
    endpoint_close(&e);
    record_end(&r);
}

static const test_case cases[] = {
    {"delivery", delivery_a, delivery_b, 0, NULL},
    {"reception", reception_a, reception_b, 0, NULL},
    {"delivery_write", delivery_write_a, delivery_write_b, 0, NULL},
    {"reception_write", reception_write_a, reception_write_b, 0, NULL},
    {"delivery_read", delivery_read_a, delivery_read_b, 0, NULL},
    {"reception_read", reception_read_a, reception_read_b, 0, NULL},
    {"unreliable", unreliable_a, unreliable_b, 0, NULL},
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
