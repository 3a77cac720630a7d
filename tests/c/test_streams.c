/*
 * test_streams.c - the sockets of a described machine. Streams carry every byte once and in order, also where time
 * becomes virtual and real again. Their times are those of the description. Windows close, and ends are noticed.
 *
 * Two processes, forked for each case, are ranks 0 and 1.
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "base/clock.h"
#include "base/streams.h"
#include "base/virtual.h"
#include "check.h"

#define SEGMENT 1000u /* the MTU without headers */
#define WINDOW 8      /* segments in the system's socket buffer */

static const char machine[] = "machine.name streams\n"
                              "host.copy_mb_s 1000\nwire.rate_mbit_s 1000\nwire.frame_bytes 0\nwire.delay_us 1\n"
                              "wire.mtu 1040\ncard.start_us 2\ncard.bus_mb_s 1000\n"
                              "tcp.send_us 1\ntcp.receive_us 4\ntcp.segment_us 2\ntcp.byte_ns 1\ntcp.coalesce_us 3\n"
                              "tcp.sockbuf 8000\ntcp.account bytes\n";

static void write_machine(const char *text)
{
    static char path[64];
    int fd = memfd_create("machine", 0); /* not CLOEXEC: the ranks read it by its number */
    CHECK(fd >= 0 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
    snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
    setenv("VIAKIT_MACHINE", path, 1);
}

struct side {
    int fd, rank;
    struct vk_stream *stream;
    uint32_t *shared; /* a word that both sides see */
};

/* ---------------------------------------------------------------- calls that wait */

static void wait_for(const struct side *me)
{
    struct pollfd p = {.fd = me->fd, .events = POLLIN};
    if (vk_time_is_virtual())
        vk_virtual->idle(vk_now() + 100 * VK_SECOND);
    else
        poll(&p, 1, 50);
}

static void send_all(const struct side *me, const void *from, size_t len)
{
    for (size_t done = 0; done < len;) {
        struct iovec v = {(char *)(uintptr_t)from + done, len - done};
        ssize_t n = vk_streams()->send(me->stream, &v, 1);
        CHECK(n > 0 || n == -EAGAIN);
        done += n > 0 ? (size_t)n : 0;
        if (n == -EAGAIN)
            wait_for(me);
    }
}

/* In two parts, so that both entries of a vector are used. */
static void recv_all(const struct side *me, void *to, size_t len)
{
    for (size_t done = 0; done < len;) {
        size_t part = (len - done + 1) / 2;
        struct iovec v[2] = {{(char *)to + done, part}, {(char *)to + done + part, len - done - part}};
        ssize_t n = vk_streams()->recv(me->stream, v, 2);
        CHECK(n > 0 || n == -EAGAIN);
        done += n > 0 ? (size_t)n : 0;
        if (n == -EAGAIN)
            wait_for(me);
    }
}

static ssize_t recv_once(const struct side *me, void *to, size_t len)
{
    return vk_streams()->recv(me->stream, &(struct iovec){to, len}, 1);
}

/* Receives until the other end has gone. Returns the number of bytes. */
static size_t recv_to_the_end(const struct side *me)
{
    char bytes[SEGMENT];
    size_t all = 0;
    for (;;) {
        ssize_t n = recv_once(me, bytes, sizeof bytes);
        if (n == 0)
            return all;
        CHECK(n > 0 || n == -EAGAIN);
        all += n > 0 ? (size_t)n : 0;
        if (n < 0)
            wait_for(me);
    }
}

static void begin(const struct side *me)
{
    CHECK_EQ(viakit_virtual_begin(2, me->rank, 60000), VIP_SUCCESS);
}

/* ---------------------------------------------------------------- two ranks */

static const struct vk_daemons *daemons; /* of the streams; NULL: none */

static void start(const char *what, void (*play)(struct side *me), int open)
{
    int fds[2];
    pid_t children[2];
    uint32_t *shared = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(shared != MAP_FAILED);
    CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
    for (int rank = 0; rank < 2; rank++) {
        children[rank] = fork();
        CHECK(children[rank] >= 0);
        if (children[rank] == 0) {
            struct side me = {.fd = fds[rank], .rank = rank, .shared = shared};
            char name[32];
            snprintf(check_context, sizeof check_context, "%s, rank %d", what, rank);
            snprintf(name, sizeof name, "s%d", (int)getppid());
            close(fds[!rank]);
            alarm(60);
            if (open)
                CHECK_EQ(vk_streams()->open(name, me.fd, 0, daemons, &me.stream), 0);
            play(&me);
            vk_streams()->close(me.stream);
            _exit(0);
        }
    }
    close(fds[0]);
    close(fds[1]);
    for (int rank = 0; rank < 2; rank++) {
        int status;
        CHECK_EQ(waitpid(children[rank], &status, 0), children[rank]);
        snprintf(check_context, sizeof check_context, "%s, status of rank %d", what, rank);
        CHECK(status == 0 || (WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL && rank == 1));
    }
    munmap(shared, 4096);
}

/* One way, n bytes in one segment. The sender takes 1 + 2 us, the delays 1 + 2 * 2 + 3 us, the receiver 4 + 2 us. A
 * byte takes 1 ns on both processors and buses, and 8 ns on the line, which also has 40 bytes of headers. */
static uint64_t due_ps(uint64_t n)
{
    return (1 + 2 + 1 + 4 + 3 + 4 + 2) * UINT64_C(1000000) + n * (1 + 1 + 1 + 1) * 1000 + (n + 40) * 8000;
}

static void latency(struct side *me)
{
    char bytes[SEGMENT];
    begin(me);
    for (size_t n = 1; n <= SEGMENT; n *= 10) {
        uint64_t before = vk_virtual->picoseconds();
        for (int i = 0; i < 4; i++) {
            if (i % 2 == me->rank)
                send_all(me, bytes, n);
            else
                recv_all(me, bytes, n);
        }
        if (me->rank == 0)
            CHECK_EQ(vk_virtual->picoseconds() - before, 4 * due_ps(n));
    }
    viakit_virtual_end();
}

/* Each side sends counted bytes while time is real, virtual, and real again, and receives the other's whenever it
 * likes: no byte is lost, and none overtakes another. */
static void order(struct side *me)
{
    static uint8_t out[50000], in[sizeof out];
    size_t sent = 0, got = 0;
    for (size_t i = 0; i < sizeof out; i++)
        out[i] = (uint8_t)(i * 7 + i / 251);
    for (int phase = 0; phase < 10; phase++) {
        size_t len = 1 + (size_t)(phase * 577) % 3000, left = (size_t)(phase * 991) % 3000;
        if (phase % 2)
            begin(me);
        send_all(me, out + sent, len);
        sent += len;
        if (sent > got + left) { /* both sides send the same numbers of bytes, and the windows stay open */
            recv_all(me, in + got, sent - left - got);
            got = sent - left;
        }
        if (phase % 2)
            viakit_virtual_end();
    }
    recv_all(me, in + got, sent - got);
    CHECK_EQ(memcmp(in, out, sent), 0);
}

/* Rank 1 does not read: rank 0 sends a window, and the next segment when rank 1 has read. */
static void window(struct side *me)
{
    static char bytes[WINDOW * SEGMENT + 1];
    begin(me);
    if (me->rank == 0) {
        struct iovec v = {bytes, sizeof bytes};
        CHECK_EQ(vk_streams()->send(me->stream, &v, 1), WINDOW * SEGMENT);
        v = (struct iovec){bytes, 1};
        CHECK_EQ(vk_streams()->send(me->stream, &v, 1), -EAGAIN);
        send_all(me, bytes, 1);
        CHECK(vk_virtual->picoseconds() > UINT64_C(1000000000000));
    } else {
        CHECK_EQ(viakit_virtual_compute(1), VIP_SUCCESS); /* does not end early or late, although segments arrive */
        CHECK_EQ(vk_virtual->picoseconds(), UINT64_C(1000000000000));
        recv_all(me, bytes, sizeof bytes);
    }
    viakit_virtual_end();
}

/* By daemons, whose packets have 2500 bytes: two of them are under way while rank 1 does not read. One packet of n
 * bytes in one segment costs a hop on each side: two copies of 1 ns for each byte, and a wake-up of 20 us. */
static void by_daemons(struct side *me)
{
    static char bytes[7501];
    begin(me);
    for (int i = 0; i < 4; i++) {
        uint64_t before = vk_virtual->picoseconds();
        if (me->rank == 0) {
            send_all(me, bytes, 100);
            recv_all(me, bytes, 100);
            CHECK_EQ(vk_virtual->picoseconds() - before, 2 * (due_ps(100) + 2 * UINT64_C(20200000)));
        } else {
            recv_all(me, bytes, 100);
            send_all(me, bytes, 100);
        }
    }
    if (me->rank == 0) {
        struct iovec v = {bytes, sizeof bytes};
        CHECK_EQ(vk_streams()->send(me->stream, &v, 1), 5000);
        send_all(me, bytes + 5000, sizeof bytes - 5000);
        CHECK(vk_virtual->picoseconds() > UINT64_C(1000000000000));
    } else {
        CHECK_EQ(viakit_virtual_compute(1), VIP_SUCCESS);
        recv_all(me, bytes, sizeof bytes);
    }
    viakit_virtual_end();
}

/* The bytes that were sent before the other end closed are received first. */
static void end(struct side *me)
{
    char bytes[2500] = {0};
    begin(me);
    if (me->rank == 1) {
        send_all(me, bytes, sizeof bytes);
    } else {
        CHECK_EQ(recv_to_the_end(me), sizeof bytes);
        CHECK_EQ(vk_streams()->send(me->stream, &(struct iovec){bytes, 1}, 1), -EPIPE);
        viakit_virtual_end();
    }
}

static void killed(struct side *me)
{
    char byte = 0;
    if (me->rank == 1) {
        send_all(me, &byte, 1);
        raise(SIGKILL);
    }
    CHECK_EQ(recv_to_the_end(me), 1);
}

/* Rank 1 has no stream, and sends other bytes. */
static void strangers(struct side *me)
{
    char name[32], bytes[64] = "these bytes are no card of a stream";
    snprintf(name, sizeof name, "s%d", (int)getppid());
    if (me->rank == 1) {
        CHECK_EQ(write(me->fd, bytes, sizeof bytes), sizeof bytes);
        WAIT_UNTIL(vk_load_acquire(me->shared));
        return;
    }
    CHECK_EQ(vk_streams()->open(name, me->fd, 0, NULL, &me->stream), 0);
    struct pollfd p = {.fd = me->fd, .events = POLLIN};
    CHECK_EQ(poll(&p, 1, 30000), 1);
    CHECK_EQ(recv_once(me, bytes, 1), -EPROTO);
    vk_store_release(me->shared, 1);
}

static void without_sockets(struct side *me)
{
    struct vk_stream *none = NULL;
    CHECK_EQ(vk_streams()->open("none", me->fd, 0, NULL, &none), -ENODEV);
    CHECK(none == NULL && strstr(viakit_last_error(), "[tcp]") != NULL);
    CHECK(vk_virtual == NULL); /* the process has left the machine */
}

int main(void)
{
    write_machine(machine);
    start("latency", latency, 1);
    start("order", order, 1);
    start("window", window, 1);
    daemons = &(struct vk_daemons){.bytes = 2500, .most = 2};
    start("daemons", by_daemons, 1);
    daemons = NULL;
    start("end", end, 1);
    start("killed", killed, 1);
    start("strangers", strangers, 0);
    write_machine("host.copy_mb_s 1000\nwire.rate_mbit_s 1000\ncard.bus_mb_s 1000\nvia.send_us 1\n");
    start("no sockets", without_sockets, 0);
    return 0;
}
