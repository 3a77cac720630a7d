/*
 * Answering `viakit inspect PID`: a program can be looked at while it runs, without having been prepared for it.
 *
 *   inspector                          this process
 *   connect @viakit/inspect/PID  --->  accept: is it the same user, or root? (SO_PEERCRED)
 *                                <---  {"schema": "viakit.process/1", "pid": ..., "nics": [snapshot, ...]}, and the end
 *
 * A thread of its own listens while a NIC is open; it sleeps in the kernel and costs nothing until somebody asks. It
 * ends with the last NIC. The name lies in the abstract namespace, so that a process that is killed leaves none behind.
 * The inspector sends nothing, and so has nothing to lie about; one that does not read is left after a second.
 *
 * VIAKIT_INSPECT=0 in the environment switches it off, and so does opening NICs without threads only (no_thread): such
 * a program has asked for none.
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

#include "../base/files.h"
#include "../link/station.h"
#include "snapshot.h"

#define PATIENCE VK_SECOND /* with an inspector that does not read */

static struct {
    pthread_mutex_t mutex; /* guards all of this; held while the thread is made and ended, never by the thread */
    int n_nics;            /* open ones that keep the thread */
    int has_thread;
    int listener, stop; /* stop: an eventfd */
    pthread_t thread;
} self = {.mutex = PTHREAD_MUTEX_INITIALIZER};

/* ---------------------------------------------------------------- the answer */

/* Returns 1 when all of it is on its way; 0 if the other side went, or took nothing for too long, or the process is
 * closing its last NIC: then there is no more to be said. */
static int say(int socket, const char *text, size_t len)
{
    /* Anew with each piece that is taken: a slow reader is not a dead one. */
    uint64_t deadline = vk_now() + PATIENCE;
    while (len) {
        ssize_t n = send(socket, text, len, MSG_NOSIGNAL | MSG_DONTWAIT);
        uint64_t now = vk_now();
        if (n >= 0) {
            text += n;
            len -= (size_t)n;
            deadline = now + PATIENCE;
            continue;
        }
        struct pollfd fds[2] = {{.fd = socket, .events = POLLOUT}, {.fd = self.stop, .events = POLLIN}};
        if (errno != EAGAIN || now >= deadline || poll(fds, 2, (int)((deadline - now) / VK_MS) + 1) <= 0 ||
            fds[1].revents)
            return 0;
    }
    return 1;
}

/* 1 said, 0 there is nothing to say any more: the NIC was closed in between; -1 as say() fails. */
static int say_nic(int socket, VIP_NIC_HANDLE handle, int first)
{
    VIP_RETURN code;
    int said = 0;
    struct snapshot *s = via_snapshot_take(handle, &code);
    size_t len = s ? via_snapshot_text(s, NULL, 0) : 0;
    char *text = s ? malloc(len + 1) : NULL;
    if (text) {
        via_snapshot_text(s, text, len + 1);
        said = (first || say(socket, ",", 1)) && say(socket, text, len) ? 1 : -1;
    }
    free(text);
    via_snapshot_free(s);
    return said;
}

/* The handle of the n-th slot's NIC if it is wholly open, else NULL. */
static VIP_NIC_HANDLE nic_at(uint32_t n)
{
    struct via_nic *nic = (struct via_nic *)(void *)(via_nic_pool.base + n * via_nic_pool.stride);
    /* Acquire, and before `inspectable`: a NIC that is found alive and wholly open has been written before. It may
     * be closed right after; then its handle is dead, and via_snapshot_take() finds that out. */
    uint32_t generation = __atomic_load_n(&nic->object.generation, __ATOMIC_ACQUIRE);
    if (generation == 0 || generation & VK_DEAD || !vk_load_acquire(&nic->inspectable))
        return NULL;
    return (char *)nic + generation;
}

/* One connection, one answer: an object of JSON with a list of snapshots, one per NIC, each taken when its turn comes.
 * Only the same user (and root) may look, by what the kernel says of the other end. */
static void answer(int socket)
{
    struct ucred who;
    socklen_t len = sizeof who;
    char head[160];
    if (getsockopt(socket, SOL_SOCKET, SO_PEERCRED, &who, &len) != 0)
        return;
    if (who.uid != geteuid() && who.uid != 0) {
        int n = snprintf(head, sizeof head, "{\"schema\":\"viakit.process/1\",\"error\":\"another user\"}\n");
        say(socket, head, (size_t)n);
        return;
    }
    pthread_mutex_lock(&via_nic_pool.mutex);
    uint32_t n_slots = via_nic_pool.n_touched;
    pthread_mutex_unlock(&via_nic_pool.mutex);
    int n = snprintf(head, sizeof head, "{\"schema\":\"viakit.process/1\",\"pid\":%d,\"nics\":[", (int)getpid());
    if (!say(socket, head, (size_t)n))
        return;
    int first = 1;
    /* Slot by slot, without the pool's mutex: NICs may come and go meanwhile, and a slot is looked at by its
     * generation. */
    for (uint32_t i = 0; i < n_slots; i++) {
        VIP_NIC_HANDLE nic = nic_at(i);
        int said = nic ? say_nic(socket, nic, first) : 0;
        if (said < 0)
            return;
        if (said)
            first = 0;
    }
    say(socket, "]}\n", 3);
}

/* Sleeps until somebody calls, or `stop` is written to. It answers one inspector after the other: there is seldom
 * more than one, and each is patient. */
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
        if (socket < 0) { /* gone again, or the process has no descriptor left: then not at once once more */
            if (errno == EMFILE || errno == ENFILE)
                poll(&fds[1], 1, 100);
            continue;
        }
        answer(socket);
        close(socket);
    }
    return unused;
}

/* ---------------------------------------------------------------- beginning and end */

/* A name in the abstract namespace goes with the process: nothing is left in a file system. */
static int listen_at_own_name(void)
{
    struct sockaddr_un a;
    memset(&a, 0, sizeof a);
    a.sun_family = AF_UNIX;
    int n = snprintf(a.sun_path + 1, sizeof a.sun_path - 1, "viakit/inspect/%d", (int)getpid());
    socklen_t len = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + (size_t)n);
    int s = vk_file_above(socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
    if (s >= 0 && (bind(s, (struct sockaddr *)&a, len) != 0 || listen(s, 4) != 0)) {
        close(s); /* somebody squats on the name: then nobody can look, and nothing else is lost */
        s = -1;
    }
    return s;
}

/* Listener, stop descriptor and thread, all or none; with the mutex. A process that cannot be looked at works as
 * well. */
static void start(void)
{
    sigset_t all, old;
    self.listener = listen_at_own_name();
    if (self.listener < 0)
        return;
    self.stop = vk_file_above(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
    sigfillset(&all); /* signals are the program's threads' affair */
    pthread_sigmask(SIG_SETMASK, &all, &old);
    self.has_thread = self.stop >= 0 && pthread_create(&self.thread, NULL, thread_main, NULL) == 0;
    pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (!self.has_thread) {
        close(self.listener);
        if (self.stop >= 0)
            close(self.stop);
    }
}

/* The first NIC that has a thread starts the inspector's, too; VIAKIT_INSPECT=0 forbids it. A NIC without thread is one
 * whose program wants no threads: then there is none. */
void via_inspect_begin(struct via_nic *nic)
{
    const char *wish = getenv("VIAKIT_INSPECT");
    if (!nic->has_thread || (wish && strcmp(wish, "0") == 0))
        return;
    pthread_mutex_lock(&self.mutex);
    if (self.n_nics++ == 0)
        start();
    pthread_mutex_unlock(&self.mutex);
    vk_store_release(&nic->inspectable, 1); /* what was set up is visible to whoever sees this */
}

/* The last one waits for the thread, which may be answering: say() gives up when `stop` can be read. */
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

/* A child has neither the thread nor a claim to its parent's name; what it opens itself begins anew. */
static void before_fork(void)
{
    pthread_mutex_lock(&self.mutex);
}

static void parent_of_fork(void)
{
    pthread_mutex_unlock(&self.mutex);
}

static void child_of_fork(void)
{
    if (self.has_thread) {
        close(self.listener);
        close(self.stop);
    }
    self.n_nics = self.has_thread = 0;
    pthread_mutex_unlock(&self.mutex);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, parent_of_fork, child_of_fork);
}
