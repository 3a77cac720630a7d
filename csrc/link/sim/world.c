/*
 * The memory of a simulated machine: how processes find it, and its frames' slots (world.h).
 *
 * The memory is a memfd. Each process that has it open also has a socket bound to an abstract name,
 *
 *    @viakit/sim-memory/UID/NAME/PID/FD
 *
 * by which others find it: they open /proc/PID/fd/FD. Names and memory vanish with their processes, so nothing is left
 * behind. While a process searches, it holds the name @viakit/sim-lock/UID/NAME. Two processes therefore cannot both
 * find nothing, and make two worlds.
 *
 * The parts of the memory, and the times at which they are written:
 *
 *    struct sim_world | slot 0 | slot 1 | ...              one mapping of fixed length, the same in all processes
 *      init(): once, by the first process, before others can find it
 *      join(): an entry of members[], by each process
 *      sim_port_take(): an entry of ports[], by each NIC and each end of a stream
 *
 * Invariant: a slot is in one place: never used (index >= n_fresh), in the free list, or in a list of path.c. n_free
 * counts the free list.
 *
 * sim_world_open() and sim_world_close() are called by the thread that opens or closes a NIC or a stream. They may
 * block for OPEN_FOR, while another process opens the same machine. All else needs the mutex and does not block.
 *
 * Trust: the processes are one user's. A process that writes nonsense into the memory can crash the others, unlike on
 * shm. Not done: checks of indices that other processes have written.
 */
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#include "base/cancel.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/files.h"
#include "base/virtual.h"
#include "link/sim/world.h"

#define OPEN_FOR (10 * VK_SECOND) /* real time for another process to finish opening */
#define FREE_PAYLOAD 8192         /* largest payload of a frame on a machine without a description, as on shm */
#define LARGEST_PAYLOAD 32768     /* of any machine: sim_poll() has a frame on its stack */
/* Large transfers would otherwise take every slot, and a short frame such as an acknowledgement could not pass. */
#define RARE 256 /* slots that only short flows may use */

/* EOWNERDEAD: the previous owner died with the mutex. The memory is used as that member left it. The member itself is
 * removed by those that wait for it (turns.c). */
void sim_lock(struct sim_world *w)
{
    if (pthread_mutex_lock(&w->mutex) == EOWNERDEAD)
        pthread_mutex_consistent(&w->mutex);
}

/* The member that was given the turn is woken after the mutex is free. Woken before, it would run into the mutex and
 * sleep again. */
void sim_unlock(struct sim_world *w)
{
    uint32_t wakes = w->to_wake;
    w->to_wake = SIM_NONE;
    pthread_mutex_unlock(&w->mutex);
    if (wakes != SIM_NONE)
        syscall(SYS_futex, &w->members[wakes].turn, FUTEX_WAKE, 1, NULL, NULL, 0);
}

/* ---------------------------------------------------------------- slots */

uint32_t sim_slot_take(struct sim_world *w, int rare)
{
    /* Free slots are those of the list, and those that no frame has used yet. */
    if (!rare && w->n_free + (w->n_slots - w->n_fresh) < RARE)
        return SIM_NONE;
    uint32_t i = w->free_slot;
    if (i != SIM_NONE) {
        w->free_slot = sim_slot_at(w, i)->next;
        w->n_free--;
    } else if (w->n_fresh < w->n_slots)
        i = w->n_fresh++; /* fresh slots are taken last: their pages take no memory before they are written */
    else
        return SIM_NONE;
    sim_slot_at(w, i)->headers = 0;
    sim_slot_at(w, i)->late = 0;
    return i;
}

void sim_slot_free(struct sim_world *w, uint32_t i)
{
    sim_slot_at(w, i)->next = w->free_slot;
    w->free_slot = i;
    w->n_free++;
}

/* ---------------------------------------------------------------- ports */

/* Ports are few, and one is taken once per opening, so the table is searched from its beginning. */
uint32_t sim_port_take(struct sim_view *v, uint16_t number, int is_stream)
{
    struct sim_world *w = v->world;
    uint32_t i = 0;
    while (i < SIM_PORTS && w->ports[i].used)
        i++;
    if (i == SIM_PORTS)
        return SIM_NONE;
    /* Peers that still have a route to the previous user of this entry notice the difference and drop their frames. */
    uint32_t generation = w->ports[i].generation + 1;
    w->ports[i] = (struct sim_port){.used = 1,
                                    .number = number,
                                    .member = v->index,
                                    .next = v->me->first_port,
                                    .first = SIM_NONE,
                                    .last = SIM_NONE,
                                    .is_stream = (uint32_t)is_stream,
                                    .generation = generation};
    v->me->first_port = i;
    w->ahead = sim_path_shortest(w); /* a NIC's frames may be faster than all before */
    return i;
}

void sim_port_leave(struct sim_world *w, uint32_t port)
{
    sim_path_drop(w, port);
    uint32_t *at = &w->members[w->ports[port].member].first_port;
    while (*at != port && *at != SIM_NONE)
        at = &w->ports[*at].next;
    if (*at == port)
        *at = w->ports[port].next;
    w->ports[port].used = 0;
}

void sim_member_bury(struct sim_world *w, uint32_t member)
{
    while (w->members[member].first_port != SIM_NONE)
        sim_port_leave(w, w->members[member].first_port);
    sim_step_out(w, member, SIM_ABSENT);
}

/* kill() with signal 0 only checks whether the process exists. Another process may have the number meanwhile: then the
 * port counts as alive until that process ends. EPERM also means that it exists. */
int sim_port_lives(struct sim_world *w, uint32_t port)
{
    const struct sim_member *m = &w->members[w->ports[port].member];
    if (m->state != SIM_ABSENT && (kill((pid_t)m->pid, 0) == 0 || errno != ESRCH))
        return 1;
    sim_member_bury(w, w->ports[port].member);
    return 0;
}

/* ---------------------------------------------------------------- finding the memory */

/* Returns a socket that holds an abstract name, or -errno; -EADDRINUSE: another process holds it. The kernel frees the
 * name when the socket closes, also if the process is killed. */
static int bind_name(const char *name)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    int fd = vk_file_own(socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
    if (fd < 0)
        return -errno;
    size_t n = strlen(name);
    memcpy(a.sun_path + 1, name, n);
    if (bind(fd, (struct sockaddr *)&a, (socklen_t)(offsetof(struct sockaddr_un, sun_path) + 1 + n)) == 0)
        return fd;
    int error = -errno;
    vk_file_close(fd);
    return error;
}

/* Waits until no other process searches for a machine of this name, or makes one. Returns a socket that holds the
 * lock's name until it is closed, or -errno. It polls once in a millisecond, because a name cannot be waited for. */
static int lock_name(const char *name)
{
    char lock[96];
    snprintf(lock, sizeof lock, "viakit/sim-lock/%u/%s", (unsigned)getuid(), name);
    for (uint64_t end = sim_real_ns() + OPEN_FOR;;) {
        int fd = bind_name(lock);
        /* After OPEN_FOR the holder is taken for stopped, and the caller gets the error. */
        if (fd != -EADDRINUSE || sim_real_ns() > end)
            return fd;
        nanosleep(&(struct timespec){0, 1000000}, NULL);
    }
}

/* Open the memory that another process has, by the list of names. Returns -ENOENT if no process has one. Otherwise
 * returns a descriptor of its own, or -errno. Any process that maps the memory is as good as the first. */
static int find_memory(const char *name)
{
    char prefix[96], line[512], path[64];
    int n = snprintf(prefix, sizeof prefix, "@viakit/sim-memory/%u/%s/", (unsigned)getuid(), name), fd = -1;
    FILE *f = fopen("/proc/net/unix", "re");
    if (f == NULL)
        return -errno;
    while (fd < 0 && fgets(line, sizeof line, f)) {
        unsigned pid, number;
        const char *at = strchr(line, '@');
        if (at == NULL || strncmp(at, prefix, (size_t)n) != 0 || sscanf(at + n, "%u/%u", &pid, &number) != 2)
            continue;
        /* The name is of this user (the kernel checks access to /proc/PID/fd), but its process may have ended since the
         * list was read: then open() fails, and the search goes on. */
        snprintf(path, sizeof path, "/proc/%u/fd/%u", pid, number);
        fd = vk_file_own(open(path, O_RDWR | O_CLOEXEC));
    }
    fclose(f);
    return fd < 0 ? -ENOENT : fd;
}

/* ---------------------------------------------------------------- making and mapping */

/* Sets all that is not 0 in a new machine. `machine` NULL: it has no description, and time stays real. */
static void init(struct sim_world *w, const struct sim_machine *machine)
{
    pthread_mutexattr_t a;
    pthread_mutexattr_init(&a);
    pthread_mutexattr_setpshared(&a, PTHREAD_PROCESS_SHARED);
    /* Robust: a rank may be killed while it holds the mutex. */
    pthread_mutexattr_setrobust(&a, PTHREAD_MUTEX_ROBUST);
    pthread_mutex_init(&w->mutex, &a);
    pthread_mutexattr_destroy(&a);
    w->max_payload = FREE_PAYLOAD;
    w->per_host = 1;
    if (machine) {
        w->machine = *machine;
        w->has_machine = 1;
        w->max_payload = machine->mtu < LARGEST_PAYLOAD ? (uint32_t)machine->mtu : LARGEST_PAYLOAD;
    }
    /* A multiple of a cache line, because the times of a slot are written by one process and read by another. */
    w->slot_size = (uint32_t)(sizeof(struct sim_slot) + SIM_BLOCK + w->max_payload + 63) & ~63u;
    w->n_slots = SIM_SLOT_BYTES / w->slot_size;
    w->free_slot = w->running = w->to_wake = SIM_NONE;
    for (uint32_t i = 0; i < SIM_MEMBERS; i++) {
        w->members[i].first_port = SIM_NONE;
        w->hosts[i].first_coming = SIM_NONE;
    }
}

/* A member's entry: a free one, or that of a process that has died. With the mutex. NULL: all SIM_MEMBERS are in use.
 */
static struct sim_member *join(struct sim_world *w)
{
    for (uint32_t i = 0; i < SIM_MEMBERS; i++) {
        struct sim_member *m = &w->members[i];
        if (m->state != SIM_ABSENT)
            continue;
        /* The futex word goes on counting: a late wake-up for the member before must not look like one for this
         * member. */
        uint32_t turn = m->turn;
        *m = (struct sim_member){.state = SIM_OUTSIDE, .pid = (uint32_t)getpid(), .turn = turn, .first_port = SIM_NONE};
        if (w->n_members <= i)
            w->n_members = i + 1;
        return m;
    }
    return NULL;
}

/* Maps the machine's memory and makes this process a member. The caller holds the lock of the name. Returns 0 or
 * -errno; after an error the caller releases the view, which has all that was opened. An existing machine keeps its own
 * description. */
static int map(struct sim_view *v, const struct sim_machine *machine)
{
    int error, fresh = 0;
    v->len = sizeof(struct sim_world) + SIM_SLOT_BYTES;
    v->memory_fd = find_memory(v->name);
    if (v->memory_fd == -ENOENT) {
        v->memory_fd = vk_file_own(memfd_create("viakit-sim", MFD_CLOEXEC));
        if (v->memory_fd < 0 || ftruncate(v->memory_fd, (off_t)v->len) != 0)
            return -errno;
        /* A new memfd is zero: all lists and states but those that init() sets. */
        fresh = 1;
    }
    if (v->memory_fd < 0)
        return v->memory_fd;
    void *at = mmap(NULL, v->len, PROT_READ | PROT_WRITE, MAP_SHARED, v->memory_fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    v->world = at;
    /* No other process can see it yet: its name is bound below, and the lock of the name is held. */
    if (fresh)
        init(v->world, machine);
    char name[96];
    snprintf(name, sizeof name, "viakit/sim-memory/%u/%s/%u/%u", (unsigned)getuid(), v->name, (unsigned)getpid(),
             (unsigned)v->memory_fd);
    if ((error = v->name_fd = bind_name(name)) < 0)
        return error;
    sim_lock(v->world);
    v->me = join(v->world);
    sim_unlock(v->world);
    if (v->me == NULL)
        return -EMFILE;
    v->index = (uint32_t)(v->me - v->world->members);
    return 0;
}

/* Frees the view with its descriptors and its mapping. When the last process closes the memfd, the machine is gone. */
static void release(struct sim_view *v)
{
    vk_file_close(v->name_fd);
    vk_file_close(v->memory_fd);
    if (v->world)
        munmap(v->world, v->len);
    free(v);
}

/* The first process decides on the machine, but each one reads the description: an error must not depend on the order
 * in which they open. *out is m, or NULL without VIAKIT_MACHINE. Returns 0 or -errno with an explanation. */
static int describe(struct sim_machine *m, const struct sim_machine **out)
{
    const char *path = getenv("VIAKIT_MACHINE");
    *out = NULL;
    if (path == NULL || *path == 0)
        return 0;
    int error = sim_machine_read(path, m);
    *out = error ? NULL : m;
    return error;
}

/* vk_virtual is published last, with release: a thread that reads the table also finds sim_here. The functions of
 * base/virtual.h read it relaxed, which suffices for the thread that opened, and others have no rank. */
int sim_world_open(const char *name, struct sim_view **out)
{
    VK_HOLD_CANCEL;
    struct sim_machine machine;
    const struct sim_machine *described;
    if (strlen(name) >= sizeof sim_here->name || strchr(name, '/')) {
        vk_explain("sim: '%.60s': a name of at most %zu characters without / is needed", name,
                   sizeof sim_here->name - 1);
        return -EINVAL;
    }
    if (sim_here) {
        if (strcmp(sim_here->name, name) != 0) {
            vk_explain("sim: this process is part of the machine '%s' already: close its NICs before opening '%s'",
                       sim_here->name, name);
            return -EBUSY;
        }
        *out = sim_here;
        return 0;
    }
    int error = describe(&machine, &described);
    if (error)
        return error;
    struct sim_view *v = calloc(1, sizeof *v);
    if (v == NULL)
        return -ENOMEM;
    /* release() closes both, whichever step fails. */
    v->memory_fd = v->name_fd = -1;
    strcpy(v->name, name);
    int lock = lock_name(name);
    error = lock < 0 ? lock : map(v, described);
    vk_file_close(lock);
    if (error) {
        vk_explain("sim: no memory to share: %s", strerror(-error));
        release(v);
        return error;
    }
    sim_here = v;
    vk_store_release(&vk_virtual, &sim_virtual);
    *out = v;
    return 0;
}

void sim_world_close(struct sim_view *v)
{
    /* A process that closes its last NIC inside virtual time leaves it, so that the other ranks go on. */
    while (v->depth || v->begun)
        sim_virtual.end();
    sim_lock(v->world);
    sim_step_out(v->world, v->index, SIM_ABSENT);
    sim_unlock(v->world);
    /* The clock must not go back: vk_virtual stays if it was ahead. */
    sim_here = NULL;
    vk_store_release(&vk_virtual, (const struct vk_virtual *)NULL);
    release(v);
}

/* A child of fork() is no part of the machine, and must not close what its parent uses. */
static void child_of_fork(void)
{
    sim_here = NULL;
    vk_virtual = NULL;
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(NULL, NULL, child_of_fork);
}
