/*
 * The memory that the processes of a simulated machine share: ranks with their clocks, NICs with the frames that wait
 * for them, and the machine's description. The first process that opens sim:NAME makes it, others map it, and it
 * vanishes with the last of them, however that one ends.
 *
 *    world   members[]   a process: its state, its clock, the time of its next event
 *            hosts[]     the parts of a host that frames queue for: bus, line, the switch's port, bus
 *            ports[]     a NIC, or the end of a stream: the frames that arrive, sorted by their time
 *            slots       the frames: a free list, and slots that were never used
 *
 * Members are in one of these states:
 *
 *    ABSENT --join--> OUTSIDE --begin--> GATHERING --the last of n--> READY <---> RUNNING --end--> OUTSIDE
 *
 * OUTSIDE, time is real: a frame arrives at once, and the link is a plain mailbox. READY and RUNNING, time is virtual,
 * and at most one member runs (turns.c). One mutex protects everything. A member that dies with it leaves it to the
 * next one that locks it (robust mutex).
 */
#ifndef VIAKIT_SIM_WORLD_H
#define VIAKIT_SIM_WORLD_H

#include <pthread.h>
#include <sched.h>
#include <stddef.h>
#include <stdint.h>

#include "base/atomic.h"
#include "link/link.h"
#include "link/sim/machine.h"

#define SIM_MEMBERS 128
#define SIM_PORTS 256
#define SIM_FLOW 128 /* frames from one member that wait at one NIC; more are refused until some were read */
#define SIM_NONE 0xFFFFFFFFu
#define SIM_NEVER UINT64_MAX
#define SIM_BLOCK 256              /* room for header and block of a frame, bytes */
#define SIM_SLOT_BYTES (64u << 20) /* memory of all frames together; pages that no frame has used take none */

/* States of a member; the picture above has the transitions. ABSENT is 0: a fresh memory has no members. */
enum sim_state { SIM_ABSENT, SIM_OUTSIDE, SIM_GATHERING, SIM_READY, SIM_RUNNING };
/* SIM_LOST: the notice that the NIC or the end of a stream `from_port` has closed. SIM_SEGMENT: of a stream. */
enum sim_kind { SIM_FRAME, SIM_LOST, SIM_SEGMENT };

/* All times are in picoseconds since the last begin. A member writes its own entry. Others write state, turn, clock and
 * wake with the mutex, when they hand over (turns.c). */
struct sim_member {
    uint32_t state, pid, rank, host;
    uint32_t turn;       /* futex: increases when this member may run */
    uint32_t asleep;     /* it waits on the futex: polling for its turn was in vain */
    uint32_t idle;       /* READY, and waits for its next event: an arrival can make `wake` earlier */
    uint32_t aligning;   /* waits for the other ranks to call begin, too */
    uint32_t first_port; /* its NICs, SIM_NONE: none */
    uint32_t calls;      /* counts its calls: a member that makes none may have been stopped */
    uint64_t clock;
    uint64_t wake;  /* READY: when it wants to run */
    uint64_t until; /* idle: the end of its wait, if nothing arrives */
} __attribute__((aligned(VK_CACHE_LINE)));

/* When each part of a host is free again, and the frames that are on their way to its switch port. Hosts exist only in
 * virtual time: a rank's host follows from its number (start() in clock.c). */
struct sim_host {
    uint64_t out_bus, out_line, in_line, in_bus;
    uint32_t first_coming; /* sorted by `head` */
};

/* A NIC or the end of a stream. Its fields are used with the mutex, unless a stale value does no harm. */
struct sim_port {
    uint32_t used, number, member, next; /* next: the member's next NIC */
    uint32_t first, last;                /* frames that have left the network, sorted by `ready` */
    uint32_t sleeping;                   /* time is real, and a thread sleeps on the NIC's socket */
    uint32_t is_stream;                  /* the end of a stream (stream.c), which no NIC can reach */
    uint32_t generation;                 /* changes when the entry is used again */
    uint64_t blocked[SIM_MEMBERS / 64];  /* members that were refused a frame */
    uint16_t n_from[SIM_MEMBERS];        /* frames of each member that were sent here and not read yet */
};

/* A frame, or a notice that a NIC has closed. A slot is in one list at a time, linked by `next`: the free list, the
 * frames on their way to a host, or the frames that have arrived at a port. */
struct sim_slot {
    uint32_t next;
    uint32_t port; /* of the receiver: its index */
    uint16_t kind, from_port, from_number, from_member;
    uint32_t from_generation, rank;
    uint32_t len, payload; /* bytes of the frame; of them, the program's */
    uint32_t of_card;      /* an acknowledgement: the cards exchange it, and it passes no bus */
    uint32_t headers;      /* bytes on the line beside payload and wire.frame_bytes */
    uint64_t late;         /* delay on the way in addition to the machine's; it occupies nothing */
    uint64_t head;         /* when its first bit reaches the receiver's switch port */
    uint64_t ready;        /* when the last bit is in the receiver's memory */
    uint64_t order;        /* of equal heads: the order of sending */
    uint8_t bytes[] __attribute__((aligned(8)));
};

/* The shared memory. The machine and the sizes are constant after init(), and epoch_ns while time is virtual. All else
 * is used with the mutex, except where a reader tolerates a stale value. Each process maps the memory at another
 * address, so members, hosts, ports and slots are named by their index and not by pointers. */
struct sim_world {
    pthread_mutex_t mutex;
    struct sim_machine machine;
    int has_machine;
    uint32_t slot_size, n_slots, n_fresh, n_free, free_slot, max_payload;
    uint32_t running;   /* the member that runs; SIM_NONE: none */
    uint32_t n_members; /* entries in use, at most */
    uint32_t n_deaths;  /* members that died while time was virtual */
    uint32_t per_host;  /* ranks on one host */
    uint32_t core;      /* of the real machine: all ranks run there while time is virtual */
    uint32_t to_wake;   /* the member that sim_unlock() wakes; SIM_NONE: none */
    uint64_t ahead;     /* the shortest time from a host to another one's switch port */
    uint64_t now;       /* the clock of the member that ran last */
    uint64_t epoch_ns;  /* the time of vk_now() at which virtual time began */
    uint64_t order;
    struct sim_member members[SIM_MEMBERS];
    struct sim_host hosts[SIM_MEMBERS];
    struct sim_port ports[SIM_PORTS];
    uint8_t slots[] __attribute__((aligned(VK_CACHE_LINE)));
};

/* One process's view of a world. Other processes do not see it. */
struct sim_view {
    struct sim_world *world;
    struct sim_member *me;
    uint32_t index; /* of `me` */
    uint32_t n_links /* NICs and ends of streams */, depth /* begins without end */, begun /* begin returned -EAGAIN */;
    size_t len;
    int memory_fd, name_fd;
    char name[32];
    struct link *links;
    uint64_t ahead_ns; /* virtual time was ahead of real time by so much when it ended */
    uint32_t n_reads;  /* of the clock, since the last other call */
    uint64_t idle_at;  /* the clock at the last idle call, and how often it has been there */
    uint32_t idle_times;
    uint32_t vain_polls;  /* this many further polls return nothing (clock.c, idle) */
    uint32_t spare_posts; /* receives that may be posted without cost: one for each message received */
    int bound;            /* the thread that is bound to a core, 0: none */
    cpu_set_t cores;      /* on which it ran before */
};

/* A NIC on this machine, for one process. It belongs to the NIC's owner (via/own.h). */
struct link {
    struct link_client *client; /* first (link_base) */
    struct sim_view *view;
    uint32_t port; /* index in ports */
    int socket;    /* holds the NIC's name, and wakes a thread that sleeps */
    int epoll;     /* readable when a peer's process has ended */
    uint32_t deaths_seen;
    uint8_t address[6];
    struct link_peer *peers;
    struct link *next; /* of the process's links in this world */
};

/* Slot i, which must not be SIM_NONE. The size of slots depends on the machine's MTU, so an array cannot hold them. */
static inline struct sim_slot *sim_slot_at(struct sim_world *w, uint32_t i)
{
    return (struct sim_slot *)(void *)(w->slots + (size_t)i * w->slot_size);
}

/* ---- world.c */
/* Maps the world of that name, or makes it. One process has one view at a time. Returns 0 or -errno, explained. The
 * caller counts its NIC or stream in v->n_links, and closes the view when that is 0 again. Further calls with the same
 * name return the same view. -EBUSY: the process has one of another name. -EINVAL: the name, or the machine's
 * description. -EMFILE: SIM_MEMBERS processes are there already. */
int sim_world_open(const char *name, struct sim_view **out);
/* Leaves virtual time, then the machine, and frees the view. All ports of this process have been removed before. */
void sim_world_close(struct sim_view *v);
/* With the mutex. Enters a NIC or the end of a stream into the table, by its number. Returns its index or SIM_NONE.
 * `number` is the NIC's port number on its station, 0 for a stream. SIM_NONE: SIM_PORTS are in use. */
uint32_t sim_port_take(struct sim_view *v, uint16_t number, int is_stream);
/* With the mutex. Removes a port from the table, with the frames that are under way to it. Its entry may be used again
 * at once, with another generation. */
void sim_port_leave(struct sim_world *w, uint32_t port);
/* With the mutex. Whether the port's process lives. If it does not, its ports are removed. */
int sim_port_lives(struct sim_world *w, uint32_t port);
/* With the mutex: removes all ports of a process that died. */
void sim_member_bury(struct sim_world *w, uint32_t member);
/* The mutex of all. A member that dies with it leaves it to the next; sim_lock() then repairs the mutex, not the data.
 * sim_unlock() also wakes the member to which the turn has passed. Neither is recursive. */
void sim_lock(struct sim_world *w);
void sim_unlock(struct sim_world *w);
/* Takes a slot, or returns SIM_NONE. `rare`: the last ones may be used, too. With the mutex. The slot is in no list,
 * and only `headers` and `late` are set, to 0. */
uint32_t sim_slot_take(struct sim_world *w, int rare);
/* With the mutex. The caller has taken the slot out of its list. */
void sim_slot_free(struct sim_world *w, uint32_t i);
/* The real monotonic time, ns. */
uint64_t sim_real_ns(void);

/* ---- clock.c */
extern const struct vk_virtual sim_virtual;
/* The view of this process; NULL: it has none. */
extern struct sim_view *sim_here;
/* Without the mutex: adds to the clock of this process. It has no effect while time is real. It gives no turn away:
 * that is for the next sim_take_turn(). */
void sim_spend(struct sim_view *v, double picoseconds);

/* ---- turns.c. All of them with the mutex. */
#define SIM_NO_LIMIT UINT64_MAX
/* Lets the member with the earliest event run. Called when no member runs. If none has an event, all wait for something
 * from outside, such as an interrupt. `self`: the caller, which needs no wake-up; NULL if it goes on in any case. */
void sim_dispatch(struct sim_world *w, const struct sim_member *self);
/* Sleeps until this member runs, and releases the mutex meanwhile. Returns 1, or 0 if it does not run after `most` ns
 * of real time. */
int sim_wait_turn(struct sim_view *v, uint64_t most);
/* Returns the last time to which this member may go without a hand-over, ps. */
uint64_t sim_last_safe(const struct sim_world *w, const struct sim_member *me);
/* Waits until no other member has an earlier event. Does nothing while time is real. */
void sim_take_turn(struct sim_view *v);
/* Recomputes the next event of an idle member to which a frame was sent. Each sender calls it after sim_path_send(). */
void sim_arrival(struct sim_world *w, uint32_t member);
/* The member leaves virtual time: it has ended or died. The next one runs. */
void sim_step_out(struct sim_world *w, uint32_t member, enum sim_state state);

/* ---- path.c, with the mutex */
/* Sends the frame in slot i to port `to`: computes when it reaches the switch, and stores it there. The caller has
 * filled in kind, lengths, sender and bytes. A sender of data has taken its turn. The slot belongs to the path then. */
void sim_path_send(struct sim_view *v, uint32_t i, uint32_t to);
/* The shortest time from a frame's sending until it reaches the switch port of another host. */
uint64_t sim_path_shortest(const struct sim_world *w);
/* Moves the frames that have reached the host's switch port by `now` on to their NICs. */
void sim_path_settle(struct sim_world *w, uint32_t host, uint64_t now);
/* The time of the next arrival at a member's NICs, by all that is under way now. */
uint64_t sim_path_next(struct sim_world *w, uint32_t member);
/* Takes the first frame that has arrived at the port by `now`, or returns SIM_NONE. The slot is the caller's, to be
 * freed. `now` is SIM_NEVER while time is real. Members that wait for room at the port are given an event. */
uint32_t sim_path_take(struct sim_world *w, uint32_t port, uint64_t now);
/* The same for the first frame that `wants` accepts; later ones keep their places. */
uint32_t sim_path_pick(struct sim_world *w, uint32_t port, uint64_t now, int (*wants)(const struct sim_slot *s));
/* Virtual time begins anew, and all clocks are 0. Segments of streams that are under way have arrived, because no
 * stream may lose one. Other frames are dropped; VIA sends them again. */
void sim_path_restart(struct sim_world *w);
/* Forgets the frames that are under way to a port that closes. The counts in n_from are not corrected: the entry is
 * cleared when it is used again. */
void sim_path_drop(struct sim_world *w, uint32_t port);

#endif
