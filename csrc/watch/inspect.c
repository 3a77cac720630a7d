/*
 * Serves `viakit inspect PID`: the state of a program can be inspected while it runs, without preparation.
 *
 *   inspector                          this process
 *   connect @viakit/inspect/PID  --->  accept: is it the same user, or root? (base/user.h)
 *                                <---  {"schema": "viakit.process/1", "pid": ..., "nics": [snapshot, ...]}, and the end
 *
 * A thread of its own listens while a NIC is open. It sleeps in the kernel and costs nothing until an inspector
 * connects. It ends with the last NIC. The name lies in the abstract namespace, so a process that is killed leaves no
 * file behind. The inspector sends nothing, so there is no input to check; one that reads nothing for a second is
 * disconnected.
 *
 * VIAKIT_INSPECT=0 in the environment disables inspection. So does opening only NICs without threads (no_thread),
 * because such a program wants no threads.
 *
 * Locks: `self.mutex` guards starting and stopping. The thread never takes it, therefore via_inspect_end() may join the
 * thread with the mutex held. The thread reads `listener` and `stop`, which do not change while it lives.
 *
 * The order in which things are made and undone:
 *
 *     first NIC    listener --> stop --> thread --> nic->inspectable = 1
 *     last NIC     stop is written --> thread joined --> listener and stop closed
 */
#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/files.h"
#include "base/pool.h"
#include "base/thread.h"
#include "base/user.h"
#include "link/station.h"
#include "via/nic.h"
#include "via/own.h"
#include "watch/snapshot.h"

#define SEND_TIMEOUT VK_SECOND /* time without progress until an inspector that does not read is disconnected */

static struct {
    pthread_mutex_t mutex; /* guards all of this; held while the thread is made and joined, never by the thread */
    int n_nics;            /* open NICs that keep the thread */
    int has_thread;        /* 0: no name or no thread was available; nothing is to be joined */
    int listener, stop;    /* stop: an eventfd */
    pthread_t thread;
} self = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---------------------------------------------------------------- the reply */

/* Sends text. Returns 1 if all of it was sent; 0 if the inspector disconnected or did not read for too long, or the
 * process is closing its last NIC. */
static int send_text(int socket, const char *text, size_t len)
{
    /* The deadline restarts with each piece that is sent: a slow reader is not a dead one. */
    uint64_t deadline = vk_now() + SEND_TIMEOUT;
    while (len) {
        ssize_t n = send(socket, text, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        uint64_t now = vk_now();
        if (n >= 0) {
            text += n;
            len -= (size_t)n;
            deadline = now + SEND_TIMEOUT;
            continue;
        }
        struct pollfd fds[2] = {{.fd = socket, .events = POLLOUT}, {.fd = self.stop, .events = POLLIN}};
        if (errno != EAGAIN || now >= deadline || poll(fds, 2, (int)((deadline - now) / VK_MS) + 1) <= 0 ||
            fds[1].revents)
            return 0;
    }
    return 1;
}

/* Sends the snapshot of one NIC. Returns 1 if it was sent, 0 if the NIC was closed in between, -1 if sending failed.
 * `first`: no comma stands before it. The text is made after the snapshot, without the NIC, in memory of its exact
 * length. A NIC for which memory is exhausted is left out, like one that was closed. */
static int send_nic(int socket, VIP_NIC_HANDLE handle, int first)
{
    VIP_RETURN code;
    int sent = 0;
    struct snapshot *s = via_snapshot_take(handle, &code);
    size_t len = s ? via_snapshot_text(s, NULL, 0) : 0;
    char *text = s ? malloc(len + 1) : NULL;
    if (text) {
        via_snapshot_text(s, text, len + 1);
        sent = (first || send_text(socket, ",", 1)) && send_text(socket, text, len) ? 1 : -1;
    }
    free(text);
    via_snapshot_free(s);
    return sent;
}

/* Returns the handle of the NIC in slot n if it is completely open, else NULL. A handle is the object's address plus
 * its generation (base/pool.h), so it becomes invalid when the object is freed. */
static VIP_NIC_HANDLE nic_at(uint32_t n)
{
    struct via_nic *nic = (struct via_nic *)(void *)(via_nic_pool.base + n * via_nic_pool.stride);
    /* Acquire, and before `inspectable`: all writes to a NIC that is found alive and completely open are then visible.
     * It may be closed right after; then its handle is invalid, and via_snapshot_take() detects that. */
    uint32_t generation = __atomic_load_n(&nic->object.generation, __ATOMIC_ACQUIRE);
    if (generation == 0 || generation & VK_DEAD || !vk_load_acquire(&nic->inspectable))
        return NULL;
    return (char *)nic + generation;
}

/* Replies to one connection: a JSON object with a list of snapshots, one per NIC, each taken in its turn. Only the same
 * user (and root) may inspect, according to the kernel's credentials of the peer. The caller closes the socket, whose
 * end is the end of the reply. */
static void answer(int socket)
{
    char head[160];
    if (vk_user_of_peer(socket, geteuid()) != VK_USER_SAME && vk_user_of_peer(socket, 0) != VK_USER_SAME) {
        int n = snprintf(head, sizeof head, "{\"schema\":\"viakit.process/1\",\"error\":\"another user\"}\n");
        send_text(socket, head, (size_t)n);
        return;
    }
    pthread_mutex_lock(&via_nic_pool.mutex);
    uint32_t n_slots = via_nic_pool.n_touched;
    pthread_mutex_unlock(&via_nic_pool.mutex);
    int n = snprintf(head, sizeof head, "{\"schema\":\"viakit.process/1\",\"pid\":%d,\"nics\":[", (int)getpid());
    if (!send_text(socket, head, (size_t)n))
        return;
    int first = 1;
    /* Slot by slot, without the pool's mutex: NICs may be opened and closed meanwhile, and a slot's generation shows
     * whether it is alive. */
    for (uint32_t i = 0; i < n_slots; i++) {
        VIP_NIC_HANDLE nic = nic_at(i);
        int sent = nic ? send_nic(socket, nic, first) : 0;
        if (sent < 0)
            return;
        if (sent)
            first = 0;
    }
    send_text(socket, "]}\n", 3);
}

/* Waits until an inspector connects or `stop` is written to. Inspectors are served one after the other: there is seldom
 * more than one, and each can wait. */
static void *thread_main(void *unused)
{
    prctl(PR_SET_NAME, "viakit-inspect");
    via_thread_id_make();
    for (;;) {
        struct pollfd fds[2] = {{.fd = self.listener, .events = POLLIN}, {.fd = self.stop, .events = POLLIN}};
        if (poll(fds, 2, -1) < 0 && errno != EINTR)
            break;
        if (fds[1].revents)
            break;
        int socket = accept4(self.listener, NULL, NULL, SOCK_CLOEXEC);
        if (socket < 0) { /* disconnected, or no file descriptor is left: then wait */
            if (errno == EMFILE || errno == ENFILE)
                poll(&fds[1], 1, 100);
            continue;
        }
        answer(socket);
        close(socket);
    }
    return unused;
}

/* ---------------------------------------------------------------- start and stop */

/* Listens at a name in the abstract namespace. The name disappears with the process, so nothing is left in a file
 * system. Returns the socket, or -1. */
static int listen_at_own_name(void)
{
    struct sockaddr_un a;
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "viakit/inspect/%d", (int)getpid());
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int s = vk_file_above(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (s >= 0 && (bind(s, (struct sockaddr *)&a, len) != 0 || listen(s, 4) != 0)) {
        close(
            s); /* Another process has bound the name. Then inspection is not possible, and nothing else is affected. */
        s = -1;
    }
    return s;
}

/* Creates listener, stop descriptor and thread, all or none. The caller holds the mutex. A process without them works
 * as well. */
static void start(void)
{
    self.listener = listen_at_own_name();
    if (self.listener < 0)
        return;
    self.stop = vk_file_above(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    self.has_thread = self.stop >= 0 && vk_thread_start(&self.thread, thread_main, NULL) == 0;
    if (!self.has_thread) {
        close(self.listener);
        if (self.stop >= 0)
            close(self.stop);
    }
}

/* Makes a NIC visible, and starts the inspector's thread with the first such NIC, unless VIAKIT_INSPECT=0. A NIC
 * without a thread belongs to a program that wants no threads: it does not start one. */
void via_inspect_begin(struct via_nic *nic)
{
    const char *wish = getenv("VIAKIT_INSPECT");
    if (!nic->has_thread || (wish && strcmp(wish, "0") == 0))
        return;
    pthread_mutex_lock(&self.mutex);
    if (self.n_nics++ == 0)
        start();
    pthread_mutex_unlock(&self.mutex);
    vk_store_release(&nic->inspectable, 1); /* a thread that reads this 1 also sees all earlier writes */
}

/* Removes a NIC. The last one joins the thread, which may be sending a reply: send_text() stops when `stop` is
 * readable. */
void via_inspect_end(void)
{
    uint64_t one = 1;
    pthread_mutex_lock(&self.mutex);
    if (--self.n_nics == 0 && self.has_thread) {
        ssize_t written = write(self.stop, &one, sizeof one);
        (void)written; /* the counter cannot be full */
        pthread_join(self.thread, NULL);
        close(self.listener);
        close(self.stop);
        self.has_thread = 0;
    }
    pthread_mutex_unlock(&self.mutex);
}

/* A child has neither the thread nor a right to its parent's name. The NICs that it opens itself start a new thread. */
static void child_of_fork(void)
{
    if (self.has_thread) {
        close(self.listener);
        close(self.stop);
    }
    self.n_nics = self.has_thread = 0;
}

VK_LOCK_AT_FORK(&self.mutex, child_of_fork())
