/*
 * test_bip.c - BIP on every link: test_bip LINK [CASE], LINK one of shm, eth, udp, each with "+fault". Ranks are processes, which find each
 * other as C programs under `viakit run` do: by the environment, and by an exchange with the process that started them.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/atomic.h"
#include "bip.h"
#include "bip/job.h"
#include "bip/launch.h"
#include "check.h"
#include "netns.h"

#define MAX_RANKS 8
#define FAULTS "loss=5%,dup=5%,reorder=5%,corrupt=1%"

typedef struct {
    const char *name;
    int n_ranks;
    void (*main)(int rank, int n);
    int may_die; /* bits: ranks that may end in any way */
    int classic; /* main opens its job by bip.h */
    void (*options)(bip_options *options);
} test_case;

static const test_case *the_case;
static const char *link_kind; /* "shm", "eth", "udp" */
static int faulty, namespaces[2] = {-1, -1};
static bip_job *job;
static int *flag; /* shared by all ranks, 0 at first: where messages are what is tested */

/* ---------------------------------------------------------------- checks */

#define OK(call)                                                                                                     \
    do {                                                                                                             \
        int check_code = (call);                                                                                     \
        if (check_code < 0)                                                                                          \
            FAIL("%s: %s (%s)", #call, bip_code_name(check_code) ? bip_code_name(check_code) : "?", bip_error(job)); \
    } while (0)
#define GIVES(call, code)                                                                            \
    do {                                                                                             \
        int check_code = (call);                                                                     \
        if (check_code != (code))                                                                    \
            FAIL("%s: %d %s instead of %s (%s)", #call, check_code,                                  \
                 bip_code_name(check_code) ? bip_code_name(check_code) : "", #code, bip_error(job)); \
    } while (0)

static void fill(void *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        ((unsigned char *)buf)[i] = (unsigned char)((i * 2654435761u + seed * 40503u) >> 8 ^ i ^ seed);
}

static int holds(const void *buf, size_t len, unsigned seed)
{
    for (size_t i = 0; i < len; i++)
        if (((const unsigned char *)buf)[i] != (unsigned char)((i * 2654435761u + seed * 40503u) >> 8 ^ i ^ seed))
            return 0;
    return 1;
}

static uint64_t counter(bip_counter which)
{
    uint64_t values[BIP_N_COUNTERS];
    bip_counters(job, values);
    return values[which];
}

/* Blocking forms with a deadline. */
#define WAIT_MS (CHECK_WAIT_S * 1000)

static void send_to(int dst, int tag, const void *buf, size_t len)
{
    int id = bip_isend_bytes(job, dst, tag, buf, len);
    OK(id);
    OK(bip_swait_id(job, id, WAIT_MS));
}

static size_t recv_from(int tag, void *buf, size_t max, int *node)
{
    size_t len = 0;
    int id = bip_irecv_bytes(job, tag, buf, max), from = -1;
    OK(id);
    OK(bip_rwait_id(job, id, &len, &from, WAIT_MS));
    if (node)
        *node = from;
    return len;
}

/* All ranks meet, by messages with tags of their own. */
static void meet(int rank, int n)
{
    char c = 0;
    for (int i = 0; i < n; i++)
        if (i != rank)
            send_to(i, -1000 - rank, &c, 1);
    for (int i = 0; i < n; i++)
        if (i != rank)
            recv_from(-1000 - i, &c, 1, NULL);
}

/* ---------------------------------------------------------------- cases */

static const size_t lengths[] = {0,    1,    4,    24,    252,   253,   1000,   4095,   4096,
                                 4097, 8192, 8193, 16384, 65536, 65537, 100000, 1 << 20};

/* Every length, each way, into guarded buffers. */
static void case_lengths(int rank, int n)
{
    size_t most = (1 << 20) + 128;
    unsigned char *out = malloc(most), *in = malloc(most);
    (void)n;
    for (size_t i = 0; i < sizeof lengths / sizeof *lengths; i++) {
        size_t len = lengths[i];
        int from = -1;
        for (int turn = 0; turn < 2; turn++) {
            memset(in, 0xA5, most);
            fill(out + 3, len, (unsigned)(i * 2 + (unsigned)turn));
            if (turn == rank)
                send_to(1 - rank, 7, out + 3, len);
            else {
                CHECK_EQ(recv_from(7, in + 64, len, &from), len);
                CHECK_EQ(from, 1 - rank);
                CHECK(holds(in + 64, len, (unsigned)(i * 2 + (unsigned)turn)));
                for (size_t k = 0; k < 64; k++)
                    CHECK(in[k] == 0xA5 && in[64 + len + k] == 0xA5);
            }
        }
    }
    CHECK(counter(BIP_COUNTER_long_sent) + counter(BIP_COUNTER_long_received) > 0);
    free(in);
    free(out);
}

/* The pipeline with every packet size gives the same bytes. */
static void fixed_packets(bip_options *o)
{
    o->packet = 4096;
    o->small = 1;
}

static void case_packets(int rank, int n)
{
    static unsigned char buf[300001];
    (void)n;
    if (rank == 0) {
        fill(buf, sizeof buf, 5);
        send_to(1, 0, buf, sizeof buf);
        CHECK_EQ(counter(BIP_COUNTER_packets_sent), (sizeof buf + 4095) / 4096);
        CHECK_EQ(bip_packet(job, 1, 2), 2);
    } else {
        CHECK_EQ(recv_from(0, buf, sizeof buf, NULL), sizeof buf);
        CHECK(holds(buf, sizeof buf, 5));
    }
}

/* Tags in another order than they were sent; within a tag the order stays. */
static void case_tags(int rank, int n)
{
    int value = 0, from;
    (void)n;
    if (rank == 0) {
        for (int i = 0; i < 10; i++)
            for (int tag = 0; tag < 3; tag++) {
                value = i * 3 + tag;
                send_to(1, tag * 1000 - 5, &value, sizeof value);
            }
    } else
        for (int tag = 2; tag >= 0; tag--)
            for (int i = 0; i < 10; i++) {
                CHECK_EQ(recv_from(tag * 1000 - 5, &value, sizeof value, &from), sizeof value);
                CHECK_EQ(value, i * 3 + tag);
            }
    meet(rank, n);
}

/* Many messages, short and long mixed, of everybody to everybody, with receives posted early and late. */
static void case_mixed(int rank, int n)
{
    enum { ROUNDS = 60 };
    size_t most = 40000;
    unsigned char *out = malloc(most), *in[MAX_RANKS];
    for (int i = 0; i < n; i++)
        in[i] = malloc(most);
    for (unsigned round = 0; round < ROUNDS; round++) {
        int ids[MAX_RANKS], from = -1;
        size_t len;
        for (int i = 0; i < n; i++)
            if (i != rank)
                OK(ids[i] = bip_irecv_bytes(job, i, in[i], most));
        for (int k = 1; k < n; k++) {
            int to = (rank + k) % n;
            len = (round * 7919u + (unsigned)rank * 104729u + (unsigned)to * 611953u) % most;
            if (round % 3)
                len %= 200;
            fill(out, len, round + (unsigned)(rank * 8 + to));
            send_to(to, rank, out, len);
        }
        for (int i = 0; i < n; i++)
            if (i != rank) {
                size_t expected = (round * 7919u + (unsigned)i * 104729u + (unsigned)rank * 611953u) % most;
                if (round % 3)
                    expected %= 200;
                OK(bip_rwait_id(job, ids[i], &len, &from, WAIT_MS));
                CHECK_EQ(from, i);
                CHECK_EQ(len, expected);
                CHECK(holds(in[i], len, round + (unsigned)(i * 8 + rank)));
            }
    }
    for (int i = 0; i < n; i++)
        free(in[i]);
    free(out);
}

/* The queue fills, the send waits, nothing is lost, memory does not grow. */
static void few_slots(bip_options *o)
{
    o->n_slots = 4;
    o->small = 1000;
}

static void case_full(int rank, int n)
{
    int value, id = -1;
    (void)n;
    size_t memory = bip_memory(job);
    if (rank == 0) {
        for (value = 0; value < 4; value++)
            send_to(1, 1, &value, sizeof value);
        OK(id = bip_isend_bytes(job, 1, 1, &value, sizeof value));
        CHECK_EQ(bip_stest_id(job, id), 0);
        CHECK_EQ(bip_isend_bytes(job, 1, 2, &value, sizeof value), BIP_ERR_BUSY);
        GIVES(bip_swait_id(job, id, 50), BIP_ERR_TIMEOUT);
        vk_store_release(flag, 1);
    }
    if (rank == 1) {
        WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag)); /* the other has seen its queue full */
        for (int i = 0; i < 200; i++) {
            CHECK_EQ(recv_from(1, &value, sizeof value, NULL), sizeof value);
            CHECK_EQ(value, i);
        }
    } else {
        OK(bip_swait_id(job, id, WAIT_MS));
        for (value = 5; value < 200; value++)
            send_to(1, 1, &value, sizeof value);
        CHECK(counter(BIP_COUNTER_queue_full) > 0);
    }
    CHECK_EQ(bip_memory(job), memory);
    meet(rank, n);
}

/* A tag with a queue of its own does not fill the one that all share. */
static void case_own_queue(int rank, int n)
{
    int value;
    if (rank == 1)
        OK(bip_taginit_bytes(job, 3, 20, 16));
    meet(rank, n);
    if (rank == 0) {
        for (value = 0; value < 20; value++)
            send_to(1, 3, &value, sizeof value); /* four slots would not hold them */
        send_to(1, 4, &value, sizeof value);
    } else {
        CHECK_EQ(recv_from(4, &value, sizeof value, NULL), sizeof value);
        for (int i = 0; i < 20; i++) {
            recv_from(3, &value, sizeof value, NULL);
            CHECK_EQ(value, i);
        }
        GIVES(bip_taginit_bytes(job, 3, 1, 17), BIP_ERR_ARGUMENT);
        GIVES(bip_taginit_bytes(job, 5, 0, 16), BIP_ERR_ARGUMENT);
    }
    meet(rank, n);
}

static void case_too_long(int rank, int n)
{
    static char buf[100000];
    if (rank == 0) {
        send_to(1, 1, buf, 10);
        int id = bip_isend_bytes(job, 1, 1, buf, sizeof buf);
        OK(id);
        GIVES(bip_swait_id(job, id, WAIT_MS), BIP_ERR_TOO_LONG);
        send_to(1, 1, "fits", 4);
    } else {
        size_t len = 0;
        int id, node;
        for (int i = 0; i < 2; i++) {
            OK(id = bip_irecv_bytes(job, 1, buf, 9));
            GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_TOO_LONG);
            CHECK_EQ(len, i ? sizeof buf : 10);
            CHECK(strstr(bip_error(job), i ? "100000" : "10 bytes") != NULL);
            GIVES(bip_rtest_id(job, id, &len, &node), BIP_ERR_ARGUMENT);
        }
        CHECK_EQ(recv_from(1, buf, 9, NULL), 4);
    }
    meet(rank, n);
}

static void case_arguments(int rank, int n)
{
    char c = 0;
    size_t len;
    int node, id;
    GIVES(bip_isend_bytes(job, rank, 0, &c, 1), BIP_ERR_SELF);
    GIVES(bip_isend_bytes(job, n, 0, &c, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_isend_bytes(job, -1, 0, &c, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_isend_bytes(job, 1 - rank, 0, NULL, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_irecv_bytes(job, 0, NULL, 1), BIP_ERR_ARGUMENT);
    GIVES(bip_rtest_id(job, 12345, &len, &node), BIP_ERR_ARGUMENT);
    GIVES(bip_freemsg(job, 0), BIP_ERR_ARGUMENT);
    OK(id = bip_irecv_bytes(job, 0, &c, 1));
    GIVES(bip_irecv_bytes(job, 0, &c, 1), BIP_ERR_BUSY);
    GIVES(bip_rwait_id(job, id, &len, &node, 20), BIP_ERR_TIMEOUT);
    GIVES(bip_rcancel_id(job, id), 0);
    GIVES(bip_rcancel_id(job, id), BIP_ERR_ARGUMENT);
    meet(rank, n);
}

static void strict(bip_options *o)
{
    o->strict = 1;
}

static void case_strict(int rank, int n)
{
    static char buf[100000];
    if (rank == 0) {
        int id = bip_isend_bytes(job, 1, 1, buf, sizeof buf);
        OK(id);
        GIVES(bip_swait_id(job, id, WAIT_MS), BIP_ERR_NOT_POSTED);
        meet(rank, n);
        recv_from(3, NULL, 0, NULL);
        send_to(1, 2, buf, sizeof buf);
    } else {
        meet(rank, n);
        int id = bip_irecv_bytes(job, 2, buf, sizeof buf);
        size_t len = 0;
        int node;
        OK(id);
        send_to(0, 3, NULL, 0);
        OK(bip_rwait_id(job, id, &len, &node, WAIT_MS));
        CHECK_EQ(len, sizeof buf);
    }
}

static void checksums(bip_options *o)
{
    o->checksum = 1;
}

static void case_short_only(int rank, int n)
{
    static char buf[100000];
    const void *place;
    size_t len = 99;
    int node = -1;
    GIVES(bip_recv_short(job, 1, buf, 4, &len, &node), 0);
    GIVES(bip_getmsg(job, 1, &place, &len, &node, 0), 0);
    meet(rank, n);
    if (rank == 0) {
        send_to(1, 1, "one", 3);
        send_to(1, 1, "two", 3);
        send_to(1, 1, "three", 5);
        send_to(1, 1, buf, sizeof buf);
    } else {
        while (bip_recv_short(job, 1, buf, 4, &len, &node) == 0)
            sched_yield();
        CHECK(len == 3 && node == 0 && memcmp(buf, "one", 3) == 0);
        OK(bip_getmsg(job, 1, &place, &len, &node, WAIT_MS));
        CHECK(len == 3 && node == 0 && memcmp(place, "two", 3) == 0);
        GIVES(bip_getmsg(job, 1, &place, &len, &node, WAIT_MS), BIP_ERR_BUSY);
        OK(bip_freemsg(job, 1));
        WAIT_UNTIL(bip_recv_short(job, 1, buf, 4, &len, &node) == BIP_ERR_TOO_LONG);
        CHECK_EQ(len, 5);
        int code;
        WAIT_UNTIL((code = bip_getmsg(job, 1, &place, &len, &node, 0)) != 0);
        CHECK_EQ(code, BIP_ERR_ARGUMENT); /* a long one */
        GIVES(bip_recv_short(job, 1, buf, 4, &len, &node), 0);
        CHECK_EQ(recv_from(1, buf, sizeof buf, NULL), sizeof buf);
    }
    meet(rank, n);
}

/* Both directions at once, long: neither waits for the other's receive to be looked at first. */
static void case_crossing(int rank, int n)
{
    size_t len = 3 << 20, got = 0;
    char *out = malloc(len), *in = malloc(len);
    (void)n;
    for (unsigned i = 0; i < 3; i++) {
        int node, r = bip_irecv_bytes(job, 1, in, len), s;
        OK(r);
        fill(out, len, i * 2 + (unsigned)rank);
        OK(s = bip_isend_bytes(job, 1 - rank, 1, out, len));
        OK(bip_swait_id(job, s, WAIT_MS));
        OK(bip_rwait_id(job, r, &got, &node, WAIT_MS));
        CHECK_EQ(got, len);
        CHECK(holds(in, len, i * 2 + 1 - (unsigned)rank));
    }
    free(in);
    free(out);
}

/* More receives than the cache of registrations has places, all long. */
static void case_many_receives(int rank, int n)
{
    enum { N = 100, LEN = 20000 };
    char *buf = malloc((size_t)N * LEN);
    if (rank == 1) {
        int ids[N], node;
        size_t len;
        for (int i = 0; i < N; i++)
            OK(ids[i] = bip_irecv_bytes(job, i, buf + (size_t)i * LEN, LEN));
        meet(rank, n);
        for (int i = 0; i < N; i++) {
            OK(bip_rwait_id(job, ids[i], &len, &node, WAIT_MS));
            CHECK_EQ(len, LEN);
            CHECK(holds(buf + (size_t)i * LEN, LEN, (unsigned)i));
        }
    } else {
        meet(rank, n);
        for (int i = N - 1; i >= 0; i--) {
            fill(buf + (size_t)i * LEN, LEN, (unsigned)i);
            send_to(1, i, buf + (size_t)i * LEN, LEN);
        }
    }
    meet(rank, n);
    free(buf);
}

/* Somebody leaves in order: others go on, and only who waits for him, or for nobody, is told. */
static void case_leaves(int rank, int n)
{
    char c = 1;
    size_t len;
    int node, id;
    (void)n;
    if (rank == 2) {
        send_to(0, 1, &c, 1); /* has to arrive though we leave at once */
        return;
    }
    if (rank == 0) {
        CHECK_EQ(recv_from(1, &c, 1, &node), 1);
        CHECK_EQ(node, 2);
        int code;
        double end = check_now() + CHECK_WAIT_S;
        while ((code = bip_isend_bytes(job, 2, 1, &c, 1)) >= 0 && check_now() < end)
            if (bip_swait_id(job, code, 100) == BIP_ERR_LEFT) {
                code = BIP_ERR_LEFT;
                break;
            }
        CHECK_EQ(code, BIP_ERR_LEFT);
        send_to(1, 5, &c, 1);
        CHECK_EQ(recv_from(6, &c, 1, NULL), 1);
    } else {
        CHECK_EQ(recv_from(5, &c, 1, NULL), 1);
        send_to(0, 6, &c, 1);
        OK(id = bip_irecv_bytes(job, 7, &c, 1));
        GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_LEFT);
    }
}

/* Somebody is killed: in the middle of everything, whoever waits is told. */
static void case_killed(int rank, int n)
{
    static char buf[1 << 20];
    char c = 0;
    size_t len;
    int node, id, s;
    meet(rank, n);
    vk_add(flag, 1);
    if (rank == 1) { /* not before the others have heard all of it */
        WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag) == n);
        raise(SIGKILL);
    }
    if (rank == 0) {
        OK(id = bip_irecv_bytes(job, 7, &c, 1));
        s = bip_isend_bytes(job, 1, 1, buf, sizeof buf);
        if (s >= 0)
            s = bip_swait_id(job, s, WAIT_MS);
        CHECK_EQ(s, BIP_ERR_PEER);
        GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_PEER);
        CHECK(strstr(bip_error(job), "rank 1 died") != NULL);
        GIVES(bip_isend_bytes(job, 1, 1, buf, 1), BIP_ERR_PEER);
    } else {
        OK(id = bip_irecv_bytes(job, 1, &c, 1));
        GIVES(bip_rwait_id(job, id, &len, &node, WAIT_MS), BIP_ERR_PEER);
    }
}

static void many_slots(bip_options *o)
{
    o->n_slots = 200;
}

/* Is the process stopped? */
static int is_stopped(pid_t pid)
{
    char path[64], text[512] = "";
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    FILE *f = fopen(path, "r");
    CHECK(f != NULL);
    CHECK(fgets(text, sizeof text, f) != NULL);
    fclose(f);
    const char *name_end = strrchr(text, ')');
    return name_end && name_end[1] == ' ' && name_end[2] == 'T';
}

/* The receiver dies while most buffers of ours are under way, and we learn of it only when we look for one: the send that looked ends, and
 * those after it do not wait for it. */
static void case_killed_full(int rank, int n)
{
    static char buf[1 << 20];
    (void)n;
    if (rank == 1) {
        pid_t me = getpid();
        send_to(0, 1, &me, sizeof me);
        recv_from(1, buf, 1, NULL); /* it has arrived */
        usleep(50000);              /* and is acknowledged: all buffers of the other are free */
        raise(SIGSTOP);
        return;
    }
    pid_t other;
    recv_from(1, &other, sizeof other, NULL);
    send_to(1, 1, buf, 1);
    WAIT_UNTIL(bip_progress(job) >= 0 && is_stopped(other));
    int last = 0;
    for (int i = 0; i < 60; i++)
        OK(last = bip_isend_bytes(job, 1, 2, buf, 100));
    kill(other, SIGKILL);
    size_t len;
    static char text[1 << 16];
    do { /* nobody calls BIP meanwhile, only the NIC finds out */
        usleep(10000);
        CHECK_OK(viakit_poll(bip_nic(job, 1), NULL));
        CHECK_OK(viakit_snapshot(bip_nic(job, 1), text, sizeof text, &len));
    } while (strstr(text, "\"connected\""));
    for (int i = 0; i < 2; i++) {
        int id = bip_isend_bytes(job, 1, 3, buf, sizeof buf);
        if (id == BIP_ERR_BUSY) { /* the last one found no buffer: then it is what learns of it */
            CHECK_EQ(bip_swait_id(job, last, WAIT_MS), BIP_ERR_PEER);
            continue;
        }
        CHECK_EQ(id < 0 ? id : bip_swait_id(job, id, WAIT_MS), BIP_ERR_PEER);
    }
}

static int interrupts;
static int interrupt(void *context)
{
    (void)context;
    return interrupts;
}

static void interruptible(bip_options *o)
{
    o->interrupt = interrupt;
    o->blocking = 1;
}

static void case_interrupt(int rank, int n)
{
    char c = 0;
    size_t len;
    int node, id;
    OK(id = bip_irecv_bytes(job, 1, &c, 1));
    interrupts = 1;
    GIVES(bip_rwait_id(job, id, &len, &node, -1), BIP_ERR_INTERRUPTED);
    interrupts = 0;
    vk_add(flag, 1);
    WAIT_UNTIL(bip_progress(job) >= 0 && vk_load_acquire(flag) == n);
    send_to(1 - rank, 1, &c, 1);
    OK(bip_rwait_id(job, id, &len, &node, WAIT_MS)); /* nothing is lost */
    meet(rank, n);
}

/* ---------------------------------------------------------------- bip.h */

static int complaints;
static void on_complaint(const char *text)
{
    CHECK(strncmp(text, "BIP, node ", 10) == 0);
    complaints++;
}

/* The manual's example, and all other calls. */
static void case_classic(int rank, int n)
{
    static int big[100000], small[10], token = 0, node = -1, length = -1;
    bip_taginit(5, 4, 10);
    bip_init();
    CHECK_EQ(bip_mynode, rank);
    CHECK_EQ(bip_numnodes, n);
    int next = (rank + 1) % n, last = (rank + n - 1) % n;
    for (int round = 0; round < 10; round++) { /* a token goes round */
        if (rank == 0) {
            bip_send(next, &token, 1);
            CHECK_EQ(bip_recv(&token, 1), 1);
            CHECK_EQ(token, (round + 1) * (n - 1));
        } else {
            CHECK_EQ(bip_recvx(&token, 1, &node), 1);
            CHECK_EQ(node, last);
            token++;
            bip_send(next, &token, 1);
        }
    }
    int r = bip_tirecv(2, big, 100000), s; /* everybody sends on, long */
    static int mine[50000];
    mine[49999] = rank;
    s = bip_tisend(next, 2, mine, 50000);
    while (bip_stest(s) == 0)
        sched_yield();
    while ((length = bip_rtestx(r, &node)) == -1)
        sched_yield();
    CHECK(length == 50000 && node == last && big[49999] == last);
    r = bip_irecv(small, 10);
    s = bip_isend(next, mine, 0); /* nothing is a message, too */
    bip_swait(s);
    CHECK_EQ(bip_rwaitx(r, &node), 0);
    bip_tsend(next, 5, mine, 10);
    bip_tsend(next, 5, mine, 9);
    bip_tsend(next, 5, mine, 8);
    int *place = bip_tgetmsg(5, &length, &node);
    CHECK(place && length == 10 && node == last);
    bip_tfreemsg(5);
    while ((place = bip_tgetmsgnb(5, &length, &node)) == NULL)
        sched_yield();
    CHECK_EQ(length, 9);
    bip_tfreemsg(5);
    while ((length = bip_trecvshort(5, small, 10, &node)) == -1)
        sched_yield();
    CHECK_EQ(length, 8);
    r = bip_tirecv(6, small, 10);
    bip_tsend(next, 6, mine, 3);
    CHECK_EQ(bip_rwait(r), 3);
    r = bip_tirecv(6, small, 10);
    bip_tsend(next, 6, mine, 3);
    while (!bip_rtest(r))
        sched_yield();
    bip_onerror(on_complaint);
    bip_tsend(rank, 1, mine, 1);
    CHECK_EQ(complaints, 1);
    CHECK_EQ(bip_tisend(99, 1, mine, 1), -1);
    CHECK_EQ(bip_tirecv(1, mine, -1), -1);
    CHECK_EQ(bip_tisend(next, 1, mine, -1), -1);
    bip_tfreemsg(5);
    CHECK_EQ(complaints, 5);
    bip_tsend(next, 8, mine, 5);
    CHECK_EQ(bip_trecv(8, small, 4), -1);
    CHECK_EQ(complaints, 6);
    bip_init();
    CHECK_EQ(complaints, 7);
    bip_end();
    CHECK_EQ(bip_trecvshort(5, small, 10, &node), -1);
    CHECK_EQ(complaints, 8);
}

static const test_case cases[] = {
    {"lengths", 2, case_lengths, 0, 0, NULL},
    {"lengths_checksum", 2, case_lengths, 0, 0, checksums},
    {"packets", 2, case_packets, 0, 0, fixed_packets},
    {"tags", 2, case_tags, 0, 0, NULL},
    {"mixed", 3, case_mixed, 0, 0, NULL},
    {"mixed_few_slots", 4, case_mixed, 0, 0, few_slots},
    {"mixed_blocking", 4, case_mixed, 0, 0, interruptible},
    {"full", 2, case_full, 0, 0, few_slots},
    {"own_queue", 2, case_own_queue, 0, 0, few_slots},
    {"too_long", 2, case_too_long, 0, 0, NULL},
    {"arguments", 2, case_arguments, 0, 0, NULL},
    {"strict", 2, case_strict, 0, 0, strict},
    {"short_only", 2, case_short_only, 0, 0, NULL},
    {"crossing", 2, case_crossing, 0, 0, NULL},
    {"many_receives", 2, case_many_receives, 0, 0, NULL},
    {"leaves", 3, case_leaves, 0, 0, NULL},
    {"killed", 3, case_killed, 2, 0, NULL},
    {"killed_full", 2, case_killed_full, 2, 0, many_slots},
    {"interrupt", 2, case_interrupt, 0, 0, interruptible},
    {"classic", 3, case_classic, 0, 1, NULL},
};

/* ---------------------------------------------------------------- ranks */

static void setting(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void run_rank(int rank, int fd)
{
    const test_case *c = the_case;
    bip_launch launch;
    uint8_t card[BIP_CARD_LEN], cards[MAX_RANKS * BIP_CARD_LEN];
    char error[BIP_ERROR_LEN] = "", name[64], host[16] = "", device[64] = "";
    int wire = strcmp(link_kind, "shm") != 0;
    snprintf(name, sizeof name, "test-bip-%d", getppid());
    setting("VIAKIT_RANK", rank);
    setting("VIAKIT_SIZE", c->n_ranks);
    setenv("VIAKIT_JOB", name, 1);
    snprintf(device, sizeof device, "fd:%d", fd);
    setenv("VIAKIT_RENDEZVOUS", device, 1);
    if (wire) { /* ranks 0, 2 and 1, 3 share hosts */
        if (namespaces[0] >= 0)
            CHECK_EQ(setns(namespaces[rank % 2], CLONE_NEWNET), 0);
        snprintf(device, sizeof device, "%s", "eth:eth0");
        if (strcmp(link_kind, "udp") == 0)
            snprintf(device, sizeof device, "udp:%s", netns_address(0, rank % 2));
        snprintf(host, sizeof host, "host %d", rank % 2);
        setenv("VIAKIT_NETWORK", device, 1);
        setenv("VIAKIT_ADDRESS", host, 1);
    }
    if (c->classic) {
        c->main(rank, c->n_ranks);
        return;
    }
    CHECK_EQ(bip_launch_find(&launch, error), 0);
    bip_options options = {.size = sizeof options,
                           .rank = launch.rank,
                           .n_ranks = launch.n_ranks,
                           .job = launch.job,
                           .host = launch.host,
                           .network_device = launch.network,
                           .faults = faulty ? FAULTS : NULL};
    if (c->options)
        c->options(&options);
    if (bip_open(&options, &job, error) != 0)
        FAIL("bip_open: %s", error);
    bip_card(job, card);
    if (bip_launch_exchange(&launch, card, sizeof card, cards, error) != 0)
        FAIL("exchange: %s", error);
    OK(bip_connect(job, cards, WAIT_MS));
    c->main(rank, c->n_ranks);
    OK(bip_close(job, WAIT_MS));
}

static int read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)to + got, len - got);
        if (n <= 0)
            return -1;
        got += (size_t)n;
    }
    return 0;
}

/* The launcher's side of one exchange. */
static void serve(const int *sockets, int n)
{
    static char answer[MAX_RANKS * 1024 + 8];
    uint32_t words[2] = {0, (uint32_t)n};
    size_t used = sizeof words;
    memcpy(answer, words, sizeof words);
    for (int i = 0; i < n; i++) {
        char magic[4];
        uint32_t len = 0;
        if (read_all(sockets[i], magic, 4) != 0 || memcmp(magic, "VKX1", 4) != 0 ||
            read_all(sockets[i], &len, 4) != 0 || len > 1000)
            return; /* a rank has failed, and says so by its status */
        memcpy(answer + used, &len, 4);
        if (read_all(sockets[i], answer + used + 4, len) != 0)
            return;
        used += 4 + len;
    }
    for (int i = 0; i < n; i++)
        CHECK_EQ(send(sockets[i], answer, used, MSG_NOSIGNAL), (ssize_t)used);
}

static void run_case(const test_case *c)
{
    int sockets[MAX_RANKS], bad = 0;
    pid_t pids[MAX_RANKS];
    the_case = c;
    *flag = 0;
    fflush(stdout);
    for (int i = 0; i < c->n_ranks; i++) {
        int pair[2];
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        CHECK((pids[i] = fork()) >= 0);
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            check_deadline(110);
            for (int k = 0; k < i; k++)
                close(sockets[k]);
            close(pair[0]);
            run_rank(i, pair[1]);
            CHECK_NOTHING_LEFT();
            exit(0);
        }
        close(pair[1]);
        sockets[i] = pair[0];
    }
    serve(sockets, c->n_ranks);
    for (int i = 0; i < c->n_ranks; i++) {
        int status = 0;
        CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        close(sockets[i]);
        if (status != 0 && !(c->may_die >> i & 1)) {
            fprintf(stderr, "[%s] rank %d ended with status 0x%x\n", check_context, i, status);
            bad = 1;
        }
    }
    if (bad)
        exit(1);
}

int main(int argc, char **argv)
{
    char kind[16];
    if (argc < 2) {
        fprintf(stderr, "usage: test_bip shm|eth|udp[+fault] [CASE]\n");
        return 2;
    }
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(argv[1], "+"), argv[1]);
    link_kind = kind;
    faulty = strstr(argv[1], "+fault") != NULL;
    int refused = strcmp(kind, "shm") != 0 ? netns_hosts(argv, namespaces) : 0;
    if (refused)
        return refused;
    /* nothing of this user's calibration counts here */
    setenv("VIAKIT_BIP_TABLE", "/nonexistent", 1);
    flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(flag != MAP_FAILED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 2 && strcmp(argv[2], cases[i].name) != 0)
            continue;
        snprintf(check_context, sizeof check_context, "%s %s", argv[1], cases[i].name);
        check_deadline(120);
        double began = check_now();
        run_case(&cases[i]);
        printf("%-20s %6.2f s\n", cases[i].name, check_now() - began);
        fflush(stdout);
    }
    return 0;
}
