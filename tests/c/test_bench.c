/*
 * test_bench.c - the measuring loop and its endpoints: both sides of every run are threads of this process.
 *
 * Some runs succeed, in every mode and with every byte checked. Others must fail: the peer is silent, closes, or sends
 * a wrong byte, the wire loses and duplicates datagrams, or the run is stopped. No time is checked.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <stdatomic.h>
#include <sys/mman.h>
#include <sys/socket.h>

#include "bench_sides.h"
#include "msg/msg.h"

/* ---------------------------------------------------------------- sockets of all kinds */

static void stream_pair(int fds[2])
{
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, fds), 0);
}

/* Two UDP sockets on the loopback, each connected to where its datagrams shall go: to one another, or to a relay. */
static int udp_socket(struct sockaddr_in *address)
{
    int fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0), size = 1 << 20;
    socklen_t len = sizeof *address;
    memset(address, 0, sizeof *address);
    address->sin_family = AF_INET;
    address->sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    /* Large, so that a burst does not run over: losses come from the relay alone. */
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    setsockopt(fd, SOL_SOCKET, SO_SNDBUF, &size, sizeof size);
    CHECK_EQ(bind(fd, (struct sockaddr *)address, sizeof *address), 0);
    CHECK_EQ(getsockname(fd, (struct sockaddr *)address, &len), 0);
    return fd;
}

static void udp_connect(int fd, const struct sockaddr_in *to)
{
    CHECK_EQ(connect(fd, (const struct sockaddr *)to, sizeof *to), 0);
}

static bench_ep *open_socket(int fd, bool polled)
{
    char error[BENCH_ERROR_LEN] = "";
    bench_ep *ep = bench_open("socket", &(bench_options){.fd = fd, .device = "unix", .polled = polled}, error);
    if (!ep)
        FAIL("%s", error);
    return ep;
}

static bench_ep *open_udp(int fd, bool polled)
{
    char error[BENCH_ERROR_LEN] = "";
    bench_ep *ep = bench_open("udp", &(bench_options){.fd = fd, .polled = polled}, error);
    if (!ep)
        FAIL("%s", error);
    return ep;
}

static void test_streams(void)
{
    /* Blocking first, then polled. */
    for (int polled = 0; polled < 2; polled++) {
        int fds[2];
        stream_pair(fds);
        bench_ep *a = open_socket(fds[0], polled), *b = open_socket(fds[1], polled);
        run_all(a, b, all_lens + 1, N_LENS - 1);
        bench_close(a);
        bench_close(b);
        close(fds[0]);
        close(fds[1]);
    }
}

static void test_datagrams(void)
{
    for (int polled = 0; polled < 2; polled++) {
        struct sockaddr_in to[2];
        int fds[2] = {udp_socket(&to[0]), udp_socket(&to[1])};
        udp_connect(fds[0], &to[1]);
        udp_connect(fds[1], &to[0]);
        bench_ep *a = open_udp(fds[0], polled), *b = open_udp(fds[1], polled);
        run_all(a, b, all_lens, N_LENS);
        bench_close(a);
        bench_close(b);
        close(fds[0]);
        close(fds[1]);
    }
}

/* ---------------------------------------------------------------- a wire that is not to be trusted */

/* Two more sockets between the sides, and a thread that carries what comes from one to the other. */
typedef struct {
    int fds[2];
    struct sockaddr_in to[2]; /* where what comes in on the other one goes; datagrams only */
    uint64_t flip_at;         /* streams: this byte of those from A to B arrives changed */
    atomic_int stop;
    int n_lost, n_doubled;
    pthread_t thread;
} relay;

/* Passes datagrams on, but every 13th is lost and every 17th comes twice. */
static void *relay_datagrams(void *context)
{
    relay *r = context;
    static unsigned char data[65536];
    /* 13 and 17 have no common factor, so losses and doublings fall on messages of every place in a run. */
    unsigned n = 0;
    while (!atomic_load(&r->stop)) {
        struct pollfd both[2] = {{.fd = r->fds[0], .events = POLLIN}, {.fd = r->fds[1], .events = POLLIN}};
        poll(both, 2, 20);
        for (int i = 0; i < 2; i++) {
            ssize_t len = recv(r->fds[i], data, sizeof data, MSG_DONTWAIT);
            if (len < 0)
                continue;
            int times = ++n % 13 == 0 ? 0 : n % 17 == 0 ? 2 : 1;
            r->n_lost += times == 0;
            r->n_doubled += times == 2;
            while (times--)
                sendto(r->fds[!i], data, (size_t)len, 0, (struct sockaddr *)&r->to[!i], sizeof r->to[0]);
        }
    }
    return NULL;
}

static void test_lossy_datagrams(void)
{
    static relay r;
    static side sides[2];
    struct sockaddr_in near[2];
    int fds[2] = {udp_socket(&r.to[0]), udp_socket(&r.to[1])};
    for (int i = 0; i < 2; i++) {
        r.fds[i] = udp_socket(&near[i]);
        udp_connect(fds[i], &near[i]);
    }
    CHECK_EQ(pthread_create(&r.thread, NULL, relay_datagrams, &r), 0);
    bench_ep *a = open_udp(fds[0], false), *b = open_udp(fds[1], false);
    for (int mode = 0; mode < 3; mode++) {
        bench_plan plan = plan_of((bench_mode)mode, 1000, true);
        plan.count = 40; /* enough for some to be lost and some doubled */
        snprintf(check_context, sizeof check_context, "lossy udp %s", mode_names[mode]);
        run_both(sides, a, b, plan);
        for (int s = 0; s < 2; s++) {
            if (sides[s].result != BENCH_OK)
                FAIL("side %c: %s", "AB"[s], sides[s].ep->error);
        }
    }
    atomic_store(&r.stop, 1);
    pthread_join(r.thread, NULL);
    /* Both things happened, and the protocol over UDP has repeated what was lost. */
    CHECK(r.n_lost > 0 && r.n_doubled > 0);
    CHECK(a->count[BENCH_COUNTER_frames_retransmitted] + b->count[BENCH_COUNTER_frames_retransmitted] > 0);
    bench_close(a);
    bench_close(b);
    for (int i = 0; i < 2; i++) {
        close(fds[i]);
        close(r.fds[i]);
    }
}

/* Passes bytes on, one of them changed on its way from A to B; the stream stays whole. */
static void *relay_bytes(void *context)
{
    relay *r = context;
    unsigned char data[4096];
    uint64_t at = 0;
    while (!atomic_load(&r->stop)) {
        struct pollfd both[2] = {{.fd = r->fds[0], .events = POLLIN}, {.fd = r->fds[1], .events = POLLIN}};
        poll(both, 2, 20);
        for (int i = 0; i < 2; i++) {
            ssize_t len = recv(r->fds[i], data, sizeof data, MSG_DONTWAIT);
            if (len <= 0)
                continue;
            if (!i && r->flip_at >= at && r->flip_at < at + (uint64_t)len)
                data[r->flip_at - at] ^= 0x10;
            at += i ? 0 : (uint64_t)len;
            for (ssize_t done = 0; done < len;) {
                ssize_t n = send(r->fds[!i], data + done, (size_t)(len - done), MSG_NOSIGNAL);
                if (n < 0)
                    return NULL;
                done += n;
            }
        }
    }
    return NULL;
}

/* A reader of touched buffers notices it as well as validation does: it does read them. */
static void test_wrong_byte(bool validate)
{
    static relay r;
    memset(&r, 0, sizeof r);
    static side sides[2];
    int near[2], far[2];
    /* A -- near ... relay ... far -- B. */
    stream_pair(near);
    stream_pair(far);
    r.fds[0] = near[1];
    r.fds[1] = far[1];
    r.flip_at = 5 * 300 + 123; /* in A's sixth message of 300 bytes, warm-up included */
    CHECK_EQ(pthread_create(&r.thread, NULL, relay_bytes, &r), 0);
    bench_ep *a = open_socket(near[0], false), *b = open_socket(far[0], false);
    bench_plan plan = plan_of(BENCH_PINGPONG, 300, true);
    plan.stall_s = 0.3; /* nothing more arrives at A */
    plan.validate = validate;
    plan.buffers = validate ? BENCH_SAME : BENCH_TOUCHED;
    snprintf(check_context, sizeof check_context, "wrong byte, %s", validate ? "validated" : "touched");
    run_both(sides, a, b, plan);
    CHECK_EQ(sides[1].result, BENCH_MISMATCH);
    /* The message and its length are named, and by validation the byte. */
    CHECK(strstr(b->error,
                 validate ? "message 5 of 300 bytes: byte 123 is" : "message 5 of 300 bytes: its words add up to"));
    CHECK_EQ(sides[0].result, BENCH_TIMEOUT);
    atomic_store(&r.stop, 1);
    pthread_join(r.thread, NULL);
    bench_close(a);
    bench_close(b);
    for (int i = 0; i < 2; i++) {
        close(near[i]);
        close(far[i]);
    }
}

/* Side A alone, with a peer that never answers. */
static int run_alone(bench_ep *ep, bench_plan plan)
{
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_OK);
    static double samples[4096];
    return bench_run(ep, &plan, samples);
}

/* ---------------------------------------------------------------- runs that have to end */

static int return_stop(void *context)
{
    ++*(int *)context;
    return 1;
}

static void test_ends(void)
{
    for (int polled = 0; polled < 2; polled++) {
        int fds[2], control[2], asked = 0;
        volatile int stop = 1;
        stream_pair(fds);
        stream_pair(control);
        bench_ep *a = open_socket(fds[0], polled);
        bench_plan plan = plan_of(BENCH_PINGPONG, 64, false);
        snprintf(check_context, sizeof check_context, "ends, %s", polled ? "poll" : "block");

        /* Silence of the peer; then a run that takes too long as a whole. */
        plan.stall_s = 0.1;
        CHECK_EQ(run_alone(a, plan), BENCH_TIMEOUT);
        CHECK(strstr(a->error, "no message of 64 bytes came or went"));
        plan.stall_s = CHECK_WAIT_S;
        plan.timeout_s = 0.1;
        CHECK_EQ(run_alone(a, plan), BENCH_TIMEOUT);
        plan.timeout_s = CHECK_WAIT_S;

        /* Three ways to stop: a flag, a callback, a message on the control socket. A coordinator's death counts as a
         * message. */
        plan.stop = &stop;
        CHECK_EQ(run_alone(a, plan), BENCH_STOPPED);
        plan.stop = NULL;
        plan.interrupt = return_stop;
        plan.interrupt_context = &asked;
        CHECK_EQ(run_alone(a, plan), BENCH_STOPPED);
        CHECK_EQ(asked, 1);
        plan.interrupt = NULL;
        plan.control_fd = control[0];
        CHECK_EQ(send(control[1], "x", 1, 0), 1);
        CHECK_EQ(run_alone(a, plan), BENCH_STOPPED);
        CHECK_EQ(recv(control[0], &asked, 1, 0), 1);
        close(control[1]); /* the coordinator dies */
        CHECK_EQ(run_alone(a, plan), BENCH_STOPPED);
        plan.control_fd = -1;

        /* And a peer that dies is not a stop but an end. */
        close(fds[1]); /* the peer dies */
        CHECK_EQ(run_alone(a, plan), BENCH_GONE);
        bench_close(a);
        close(fds[0]);
        close(control[0]);
    }
}

static void test_bad_plans(void)
{
    char error[BENCH_ERROR_LEN];
    bench_ep *ep = bench_open("null", &(bench_options){.fd = -1}, error);
    bench_plan plan = plan_of(BENCH_PINGPONG, 64, false);
    snprintf(check_context, sizeof check_context, "bad plans");
    /* One good plan, to show that the others are refused for what was changed in them. */
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_OK);
    plan.count = 0;
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_ERROR);
    plan.count = 1;
    plan.offset = BENCH_HEADROOM;
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_ERROR);
    plan.offset = 0;
    plan.len = (size_t)1 << 40;
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_ERROR);
    CHECK(strstr(ep->error, "takes messages of"));
    plan.len = 64;
    plan.memory = BENCH_MEMORY_VIAKIT;
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_ERROR);
    CHECK(strstr(ep->error, "null has no memory of its own"));
    plan.memory = BENCH_MEMORY_USER;
    plan.buffers = BENCH_COLD; /* without a pool */
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_ERROR);
    CHECK(strstr(ep->error, "cold buffers need a pool"));
    plan.buffers = BENCH_SAME;
    plan.validate = true; /* nothing is carried, so nothing can be checked */
    CHECK_EQ(bench_prepare(ep, &plan), BENCH_ERROR);
    bench_close(ep);
    bench_close(NULL);
}

/* ---------------------------------------------------------------- clock, null, floor, VIA */

static uint64_t raw_ns(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC_RAW, &t);
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

/* A span of ticks lies within the span of nanoseconds around it, however often we lose the core: the inner span is read
 * inside the outer one, so being interrupted makes the outer one longer and nothing wrong. The tolerance of 0.1 % is
 * the calibration's. */
static void test_clock(void)
{
    snprintf(check_context, sizeof check_context, "clock %s", bench_clock_name());
    double ns = bench_ns_per_tick();
    uint64_t outer = raw_ns(), first = bench_ticks(), inner = raw_ns();
    WAIT_UNTIL(raw_ns() - inner > 5000000);
    uint64_t inner_end = raw_ns(), last = bench_ticks(), outer_end = raw_ns();
    double span = (double)(last - first) * ns;
    CHECK(span > (double)(inner_end - inner) * 0.999);
    CHECK(span < (double)(outer_end - outer) * 1.001);
}

static void test_null_and_floor(void)
{
    static side sides[2];
    char error[BENCH_ERROR_LEN];
    bench_ep *null = bench_open("null", &(bench_options){.fd = -1}, error);
    bench_plan plan = plan_of(BENCH_PINGPONG, 8, false);
    snprintf(check_context, sizeof check_context, "null");
    CHECK_EQ(run_alone(null, plan), BENCH_OK);
    bench_close(null);

    /* The floor is a cache line that goes back and forth between two cores; it has nothing but ping-pong. */
    snprintf(check_context, sizeof check_context, "floor");
    int fd = memfd_create("floor", MFD_CLOEXEC);
    CHECK_EQ(ftruncate(fd, 4096), 0);
    bench_ep *a = bench_open("floor", &(bench_options){.fd = fd, .side = 0}, error);
    bench_ep *b = bench_open("floor", &(bench_options){.fd = fd, .side = 1}, error);
    CHECK(a && b);
    for (int i = 0; i < 3; i++) {
        run_both(sides, a, b, plan);
        CHECK_EQ(sides[0].result, BENCH_OK);
        CHECK_EQ(sides[1].result, BENCH_OK);
    }
    plan.mode = BENCH_STREAM;
    CHECK_EQ(bench_prepare(a, &plan), BENCH_ERROR);
    bench_close(a);
    bench_close(b);
    close(fd);
    CHECK(!bench_open("floor", &(bench_options){.fd = -1}, error) && *error);
    CHECK(!bench_open("pigeon", &(bench_options){.fd = -1}, error) && strstr(error, "pigeon"));
}

static void *accept_via(void *context)
{
    int rc;
    do
        rc = bench_via_accept(context, (const unsigned char *)"bench", 5);
    while (rc == BENCH_NOT_YET);
    return rc == BENCH_DONE ? context : NULL;
}

static void test_via(void)
{
    for (int way = 0; way < 4; way++) {
        char error[BENCH_ERROR_LEN];
        unsigned char address[64];
        bench_via_options options = {.device = "loop:bench", .polled = way & 1, .rdma_write = way & 2};
        pthread_t thread;
        void *accepted;
        int rc;
        snprintf(check_context, sizeof check_context, "via connect");
        bench_ep *a = bench_via_open(&options, error), *b = bench_via_open(&options, error);
        if (!a || !b)
            FAIL("%s", error);
        int n = bench_via_address(b, address, sizeof address);
        CHECK_EQ(n, 6);
        CHECK_EQ(pthread_create(&thread, NULL, accept_via, b), 0);
        do
            rc = bench_via_connect(a, address, (size_t)n, (const unsigned char *)"bench", 5);
        while (rc == BENCH_NOT_YET);
        if (rc != BENCH_DONE)
            FAIL("%s", a->error);
        pthread_join(thread, &accepted);
        if (!accepted)
            FAIL("%s", b->error);
        run_all(a, b, all_lens, N_LENS);
        run_all_in(a, b, all_lens + 3, 2, BENCH_MEMORY_VIAKIT);
        bench_close(a);
        bench_close(b);
    }
    CHECK_NOTHING_LEFT();
    /* A device that is not there: no endpoint, and a reason. */
    bench_via_options nowhere = {.device = "eth:no-such-if", .polled = true};
    char error[BENCH_ERROR_LEN] = "";
    CHECK(!bench_via_open(&nowhere, error) && *error);
}

/* ---------------------------------------------------------------- messages */

static void *open_msg(void *options)
{
    char error[BENCH_ERROR_LEN];
    bench_ep *ep = bench_msg_open(options, error);
    if (!ep)
        FAIL("%s", error);
    return ep;
}

/* Two ranks. Each opens in a thread of its own, for both must be there: by the socket pair they exchange how they
 * can be reached. */
static void msg_pair(const char *channel, const char *policy, int polled, bench_ep *eps[2])
{
    int fds[2];
    bench_msg_options options[2];
    pthread_t thread;
    void *b;
    snprintf(check_context, sizeof check_context, "msg %s %s", channel, policy);
    stream_pair(fds);
    for (int i = 0; i < 2; i++)
        options[i] = (bench_msg_options){.channel = channel,
                                         .policy = policy,
                                         .fd = fds[i],
                                         .side = i,
                                         .polled = polled,
                                         .timeout_s = CHECK_WAIT_S,
                                         .secret = (const unsigned char *)"thirty-two bytes of test secret"};
    CHECK_EQ(pthread_create(&thread, NULL, open_msg, &options[1]), 0);
    eps[0] = open_msg(&options[0]);
    pthread_join(thread, &b);
    eps[1] = b;
    close(fds[0]);
    close(fds[1]);
}

static void *close_ep(void *ep)
{
    bench_close(ep);
    return NULL;
}

/* Worlds are closed together, or the first one waits for the second. */
static void msg_close(bench_ep *eps[2])
{
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, close_ep, eps[1]), 0);
    bench_close(eps[0]);
    pthread_join(thread, NULL);
}

static void test_messages(void)
{
    /* Every channel with its own policy, with policies of libraries of the time, and with single settings. */
    static const char *const ways[][2] = {{"via", ""},
                                          {"via", "mvich-rget"},
                                          {"via", "mvich-r3,credits=8"},
                                          {"via", "progress=thread"},
                                          {"tcp", ""},
                                          {"tcp", "mpich-p4"},
                                          {"tcp", "tcgmsg"},
                                          {"tcp", "eager_limit=unlimited,copy_send=1,unexpected_bytes=1M"}};
    /* Empty, short, and long ones below and above the limits of the policies' eager messages. */
    static const size_t lens[] = {0, 8, 9000, 100000, 1 << 20};
    bench_ep *eps[2];
    uint64_t values[64];
    for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
        for (int polled = 0; polled < 2; polled++) {
            msg_pair(ways[i][0], ways[i][1], polled, eps);
            run_all(eps[0], eps[1], lens, sizeof lens / sizeof lens[0]);
            bench_plan plan = plan_of(BENCH_STREAM, 9000, false);
            plan.memory = BENCH_MEMORY_VIAKIT;
            plan.buffers = BENCH_TOUCHED;
            if (strcmp(ways[i][0], "via") == 0) {
                run_one(eps[0], eps[1], plan);
            } else {
                CHECK_EQ(bench_prepare(eps[0], &plan), BENCH_ERROR);
                CHECK(strstr(eps[0]->error, "channel tcp has no memory of its own"));
            }
            int n = bench_msg_counters(eps[0], values);
            CHECK(n > 0 && n <= 64 && msg_counter_name(n - 1) && !msg_counter_name(n));
            CHECK(strcmp(msg_counter_name(0), "sent") == 0);
            CHECK(values[0] > 0);
            msg_close(eps);
        }
    }
    /* a peer that is silent, a flag that says stop, a peer that goes */
    for (int polled = 0; polled < 2; polled++) {
        /* An eager message of 8 bytes, which leaves at once, and one of 1 MiB, whose rendezvous waits for an answer. */
        for (size_t len = 8; len <= 1 << 20; len = len * 131072) {
            bench_plan plan = plan_of(BENCH_PINGPONG, len, false);
            volatile int stop = 1;
            msg_pair("via", "", polled, eps);
            plan.stall_s = 0.1;
            CHECK_EQ(run_alone(eps[0], plan), BENCH_TIMEOUT);
            msg_close(eps);
            msg_pair("via", "", polled, eps);
            plan.stop = &stop;
            CHECK_EQ(run_alone(eps[0], plan), BENCH_STOPPED);
            plan.stop = NULL;
            plan.stall_s = CHECK_WAIT_S;
            msg_close(eps);
            msg_pair("via", "", polled, eps);
            bench_close(eps[1]);
            CHECK_EQ(run_alone(eps[0], plan), BENCH_GONE);
            bench_close(eps[0]);
        }
    }
    CHECK_NOTHING_LEFT();
    /* Policies that do not fit the channel, are none, or have no socket; and a channel that is none. Each with a reason
     * in words. */
    char error[BENCH_ERROR_LEN];
    bench_msg_options bad = {.channel = "via",
                             .policy = "mpich-p4",
                             .fd = -1,
                             .timeout_s = 1,
                             .secret = (const unsigned char *)"thirty-two bytes of test secret"};
    CHECK(!bench_msg_open(&bad, error) && strstr(error, "measure it as msg-tcp"));
    bad.policy = "nonsense";
    CHECK(!bench_msg_open(&bad, error) && strstr(error, "policy: "));
    bad.policy = NULL;
    CHECK(!bench_msg_open(&bad, error) && strstr(error, "as a socket"));
    bad.channel = "pigeon";
    CHECK(!bench_msg_open(&bad, error) && strstr(error, "no channel"));
}

int main(void)
{
    check_deadline(150);
    test_clock();
    test_null_and_floor();
    test_streams();
    test_datagrams();
    test_lossy_datagrams();
    test_wrong_byte(true);
    test_wrong_byte(false);
    test_ends();
    test_bad_plans();
    test_via();
    test_messages();
    return 0;
}
