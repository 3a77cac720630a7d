/*
 * test_sim.c - simulated machines: times are exactly those that the description declares, runs repeat to the bit, and
 * the order is the same whatever the real machine does. Ranks are processes, forked for each case.
 */
#include <errno.h>
#include <math.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/virtual.h"
#include "bench/bench.h"
#include "check.h"

#define MOST_RANKS 8
#define MOST_SAMPLES 4096

/* Latency: 1 send, 2 + 2 cards, 1 wire, 4 receive = 10 us. 1000 Mbit/s is 8 ns a byte; a bus has 1 ns a byte. */
static const char ten_us[] = "machine.name ten\n"
                             "host.copy_mb_s 1000\nwire.rate_mbit_s 1000\nwire.frame_bytes 0\nwire.delay_us 1\n"
                             "wire.mtu 1024\ncard.start_us 2\ncard.bus_mb_s 1000\n"
                             "via.send_us 1\nvia.receive_us 4\nvia.post_us 0\nvia.register_us 0\n"
                             "via.register_page_us 0\n";

static char machine_path[64];

static void write_machine(const char *text)
{
    int fd = memfd_create("machine", 0); /* not CLOEXEC: the ranks read it by its number */
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    snprintf(machine_path, sizeof machine_path, "/proc/self/fd/%d", fd);
    setenv("VIAKIT_MACHINE", machine_path, 1);
}

/* ---------------------------------------------------------------- two sides of the measuring loop */

struct results {
    double samples[MOST_SAMPLES];
};

static struct results *shared(void)
{
    void *at = mmap(NULL, sizeof(struct results), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(at != MAP_FAILED);
    return at;
}

static void exchange(int fd, const void *own, void *remote, size_t len)
{
    CHECK_EQ(write(fd, own, len), (ssize_t)len);
    CHECK_EQ(read(fd, remote, len), (ssize_t)len);
}

static void connect_side(bench_ep *ep, int fd, int side)
{
    unsigned char address[64] = {0}, peer[64];
    static const unsigned char token[] = "test";
    int len = bench_via_address(ep, address, sizeof address);
    CHECK(len > 0);
    exchange(fd, address, peer, sizeof address);
    for (;;) {
        int rc = side ? bench_via_connect(ep, peer, (size_t)len, token, 4) : bench_via_accept(ep, token, 4);
        if (rc == BENCH_DONE)
            return;
        if (rc < 0)
            FAIL("%s", ep->error);
    }
}

static void measure_side(int fd, int side, bench_plan plan, int polled, double *samples)
{
    char error[BENCH_ERROR_LEN] = "", device[32], ready = 1;
    snprintf(device, sizeof device, "sim:t%d", (int)getppid());
    bench_ep *ep = bench_via_open(&(bench_via_options){.device = device, .polled = polled}, error);
    if (ep == NULL)
        FAIL("%s", error);
    connect_side(ep, fd, side);
    plan.side = side;
    if (bench_prepare(ep, &plan) != BENCH_OK)
        FAIL("%s", ep->error);
    exchange(fd, &ready, &ready, 1);
    if (bench_run(ep, &plan, side ? NULL : samples) != BENCH_OK)
        FAIL("%s", ep->error);
    exchange(fd, &ready, &ready, 1);
    bench_close(ep);
}

/* Both sides as processes. Returns side A's samples. */
static void measure(bench_plan plan, int polled, double *samples)
{
    int fds[2];
    struct results *r = shared();
    pid_t children[2];
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int side = 0; side < 2; side++) {
        children[side] = fork();
        CHECK(children[side] >= 0);
        if (children[side] == 0) {
            snprintf(check_context, sizeof check_context, "side %c", "AB"[side]);
            close(fds[!side]);
            alarm(60);
            measure_side(fds[side], side, plan, polled, r->samples);
            _exit(0);
        }
    }
    close(fds[0]);
    close(fds[1]);
    for (int side = 0; side < 2; side++) {
        int status;
        CHECK_EQ(waitpid(children[side], &status, 0), children[side]);
        CHECK_EQ(status, 0);
    }
    memcpy(samples, r->samples, sizeof r->samples);
    munmap(r, sizeof *r);
}

static bench_plan plan_of(bench_mode mode, size_t len, uint64_t count)
{
    return (bench_plan){.mode = mode,
                        .len = len,
                        .count = count,
                        .warmup = 2,
                        .repeats = mode == BENCH_PINGPONG ? 1 : 3,
                        .timeout_s = 1000,
                        .stall_s = 100,
                        .control_fd = -1};
}

static double samples[2][MOST_SAMPLES];

/* A message of n bytes in one frame takes 10 us, n bytes on a bus twice and on the line once. */
static void check_latency(void)
{
    static const size_t lens[] = {0, 8, 1000};
    for (size_t i = 0; i < sizeof lens / sizeof *lens; i++) {
        snprintf(check_context, sizeof check_context, "latency of %zu bytes", lens[i]);
        measure(plan_of(BENCH_PINGPONG, lens[i], 100), 1, samples[0]);
        double due = 10000 + (double)lens[i] * (1 + 8 + 1);
        for (int k = 0; k < 100; k++)
            if (fabs(samples[0][k] - due) > 1e-6)
                FAIL("round trip %d is %.3f ns, expected %.3f", k, samples[0][k], due);
    }
}

/* A message takes 10.08 us one way. Beside computing, only A's own send of 1 us and receive of 4 us remain. */
static void check_overlap(void)
{
    snprintf(check_context, sizeof check_context, "overlap");
    bench_plan plan = plan_of(BENCH_PINGPONG, 8, 20);
    plan.computes = true;
    measure(plan, 1, samples[0]);
    for (int k = 0; k < 20; k++)
        if (fabs(samples[0][k] - (k % 2 ? (1000 + 4000) / 2 : 10000 + 80)) > 1e-6)
            FAIL("round trip %d is %.3f ns", k, samples[0][k]);
}

/* A blocking wait that sleeps also takes the interrupt: once in each direction. The NICs' timers fall into some of the
 * waits in these 180 ms, and cost nothing. */
static void check_blocking(void)
{
    snprintf(check_context, sizeof check_context, "blocking");
    bench_plan plan = plan_of(BENCH_PINGPONG, 8, 3000);
    measure(plan, 0, samples[0]);
    for (uint64_t k = 0; k < plan.count; k++)
        if (fabs(samples[0][k] - (10000 + 80 + 20000)) > 1e-6)
            FAIL("round trip %d is %.3f ns", (int)k, samples[0][k]);
}

/* The line is the slowest stage: frames of 1024 bytes leave it every 8192 ns, so 64 KiB take 64 times as long. The
 * samples of a stream contain its end, the reply. */
static void check_stream(void)
{
    snprintf(check_context, sizeof check_context, "stream");
    bench_plan plan = plan_of(BENCH_STREAM, 32768, 200);
    measure(plan, 1, samples[0]);
    measure(plan, 1, samples[1]);
    for (int k = 0; k < 3; k++) {
        CHECK(samples[0][k] > 32768 * 8 && samples[0][k] < 32768 * 8 * 1.01);
        CHECK(memcmp(&samples[0][k], &samples[1][k], sizeof(double)) == 0);
    }
}

/* Both directions at once, 64 frames each way: with a bus for each direction the line is the slowest stage, with one
 * bus for both it is the bus, which needs 10 ns for a byte here. */
static void check_duplex(void)
{
    static const char slow_bus[] = "card.bus_mb_s 100\n";
    char text[1024];
    double took[2];
    for (int half = 0; half < 2; half++) {
        snprintf(check_context, sizeof check_context, "%s duplex", half ? "half" : "full");
        snprintf(text, sizeof text, "%s%scard.duplex %s\n", ten_us, slow_bus, half ? "half" : "full");
        write_machine(text);
        measure(plan_of(BENCH_BIDIR, 65536, 20), 1, samples[0]);
        took[half] = samples[0][0];
    }
    CHECK(took[1] > 1.8 * took[0] && took[1] < 2.2 * took[0]);
    write_machine(ten_us);
}

/* A machine with [bip] only: 3 + 5 us of the processors, and 1 us for a packet in each card. */
static void check_bip_costs(void)
{
    static const char bip[] = "host.copy_mb_s 1000\nwire.rate_mbit_s 1000\nwire.frame_bytes 0\nwire.mtu 1024\n"
                              "card.bus_mb_s 1000\nbip.send_us 3\nbip.receive_us 5\nbip.packet_us 1\n";
    snprintf(check_context, sizeof check_context, "bip's costs");
    write_machine(bip);
    measure(plan_of(BENCH_PINGPONG, 8, 20), 1, samples[0]);
    for (int k = 0; k < 20; k++)
        CHECK(fabs(samples[0][k] - (3000 + 5000 + 2 * 1000 + 80)) < 1e-6);
    write_machine(ten_us);
}

/* Runs repeat to the bit while other processes use all cores. */
static void check_repeats(void)
{
    pid_t busy[4];
    for (int i = 0; i < 4; i++) {
        busy[i] = fork();
        CHECK(busy[i] >= 0);
        if (busy[i] == 0) {
            alarm(60);
            for (volatile unsigned n = 0;; n++) {}
        }
    }
    bench_mode modes[] = {BENCH_PINGPONG, BENCH_BIDIR};
    for (int i = 0; i < 2; i++) {
        snprintf(check_context, sizeof check_context, "repeats %d", i);
        bench_plan plan = plan_of(modes[i], 3000, 100);
        for (int run = 0; run < 2; run++)
            measure(plan, 1, samples[run]);
        CHECK(memcmp(samples[0], samples[1], (i ? plan.repeats : plan.count) * sizeof(double)) == 0);
    }
    for (int i = 0; i < 4; i++) {
        kill(busy[i], SIGKILL);
        waitpid(busy[i], NULL, 0);
    }
}

/* Rank 0 waits for 10 ms of virtual time. Meanwhile rank 1, 5 us ahead, keeps the turn until rank 0 has waited in vain
 * twice, and has polled its NIC each time. Such a poll neither waits for the turn nor moves the clock. */
static void wait_in_vain(int rank, uint32_t *n_vain)
{
    char device[32];
    VIP_NIC_HANDLE nic;
    snprintf(device, sizeof device, "sim:t%d", (int)getppid());
    CHECK_EQ(VipOpenNic(device, &nic), VIP_SUCCESS);
    CHECK_EQ(viakit_virtual_begin(2, rank, 60000), VIP_SUCCESS);
    if (rank == 1) {
        vk_charge(VK_CHARGE_TIME, 5000);
        CHECK_EQ(viakit_poll(nic, NULL), VIP_SUCCESS); /* the others' time is 5 us from here on */
        WAIT_UNTIL(vk_load_acquire(n_vain) >= 2);
    } else {
        uint64_t begun = vk_virtual->picoseconds(), until = vk_now() + 10 * VK_MS;
        while (!vk_virtual->idle(until)) {
            CHECK_EQ(viakit_poll(nic, NULL), VIP_SUCCESS);
            CHECK_EQ(vk_virtual->picoseconds(), begun);
            vk_store_release(n_vain, *n_vain + 1);
        }
        CHECK_EQ(vk_virtual->picoseconds(), begun + 10000000000);
    }
    viakit_virtual_end();
    CHECK_EQ(VipCloseNic(nic), VIP_SUCCESS);
}

static void check_vain_waits(void)
{
    struct results *r = shared();
    pid_t children[2];
    for (int rank = 0; rank < 2; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            snprintf(check_context, sizeof check_context, "waits in vain, rank %d", rank);
            alarm(60);
            wait_in_vain(rank, (uint32_t *)(void *)r->samples);
            _exit(0);
        }
    }
    for (int rank = 0; rank < 2; rank++) {
        int status;
        CHECK_EQ(waitpid(children[rank], &status, 0), children[rank]);
        CHECK_EQ(status, 0);
    }
    munmap(r, sizeof *r);
}

/* Seconds of the processor that all ranks so far have used. */
static double used(void)
{
    struct rusage u;
    CHECK_EQ(getrusage(RUSAGE_CHILDREN, &u), 0);
    return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) + 1e-6 * (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec);
}

/* `test_sim speed N`: real time of N messages, and the processor's time. For people; the test proper takes no times. */
static int speed(uint64_t n)
{
    bench_plan plans[] = {plan_of(BENCH_PINGPONG, 8, 1), plan_of(BENCH_STREAM, 8, n / 3)};
    plans[0].warmup = n / 2;
    for (int i = 0; i < 2; i++) {
        double begun = check_now(), before = used();
        plans[i].timeout_s = plans[i].stall_s = 1e6;
        measure(plans[i], 1, samples[0]);
        printf("%s, %llu messages: %.2f s of real time, %.2f s of the processor\n", i ? "stream" : "ping-pong",
               (unsigned long long)n, check_now() - begun, used() - before);
    }
    return 0;
}

int main(int argc, char **argv)
{
    write_machine(ten_us);
    if (argc == 3 && strcmp(argv[1], "speed") == 0)
        return speed(strtoull(argv[2], NULL, 10));
    check_latency();
    check_overlap();
    check_blocking();
    check_stream();
    check_duplex();
    check_bip_costs();
    check_repeats();
    check_vain_waits();
    return 0;
}
