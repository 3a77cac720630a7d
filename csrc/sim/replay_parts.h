/*
 * Declarations shared by the two files of the replay: replay.c performs the ranks' operations, replay_frames.c moves
 * the frames of messages through the machine. Both are driven by one queue of events (replay.c).
 *
 *     rank --push--> message --frames, event by event--> ARRIVE --> rank that receives
 *          <--pushed-- the sender's processor has taken the last frame
 *
 * All functions change the state of one call and have no other. Times are ns of virtual time, as in replay.h.
 */
#ifndef VIAKIT_SIM_REPLAY_PARTS_H
#define VIAKIT_SIM_REPLAY_PARTS_H

#include "sim/replay.h"

/* Kinds of events. The id is a rank for RUN, and a message for all others. */
enum {
    RUN,     /* the rank goes on with its next operation */
    FRAME,   /* the sender's processor is free for the message's next frame */
    PORT,    /* the head of a frame reaches the receiver's port of the switch */
    ACK,     /* an acknowledgement reaches the sender */
    ARRIVE,  /* the last frame is in the receiver's memory */
    REQUEST, /* the request of a long message reaches the receiver */
    START    /* its reply reaches the sender */
};
enum { NONE = -1 }; /* in lists, which are linked by indices: no further entry */

/* One entry of the queue, a binary heap: no entry is later than its children at 2i + 1 and 2i + 2. */
struct event {
    double at;        /* ns of virtual time */
    uint64_t order;   /* of events at the same time */
    int32_t kind, id; /* id: a rank for RUN, a message for all others */
};

/* A message, from the operation that begins it to the end of the replay. Times are ns. */
struct message {
    int32_t src, dst;  /* ranks */
    int32_t next;      /* in the receiver's list of envelopes, or NONE */
    int32_t receive;   /* matched receive, or NONE */
    int32_t next_push; /* in the sender's list of messages to push */
    int64_t tag;
    int64_t frames, pushed, ported, acked; /* frames in all, pushed, through the port, acknowledged */
    double bytes, cpu; /* cpu: the sender's processor has pushed the last frame, or may push the next */
    double head, end;  /* the first and the last frame are in the receiver's memory */
    double taken;      /* the receiver's processor took it before a receive matched; 0: not yet */
    int8_t stalled;    /* the window is closed */
    int8_t path, is_long, is_write, arrived, blocks; /* blocks: the sender's SEND waits for it */
};

/* A receive, or a wait for a write. */
struct receive {
    int32_t next;       /* in the rank's list of unmatched receives */
    int32_t next_begun; /* in its list of receives begun by IRECV */
    int32_t message;    /* that has arrived, or NONE */
    int32_t src;        /* the rank whose message it takes */
    int64_t tag;
    int8_t blocks; /* RECV or AWAIT */
};

/* A rank. It waits for at most one operation at a time: `op` is that one, or the next to perform. */
struct rank {
    double now, waited;                                       /* ns: its clock, and the sum of its waits for others */
    double busy;                                              /* taking messages that are not matched yet */
    int64_t op;                                               /* the operation it performs, in its own list */
    int32_t envelopes, last_envelope, receives, last_receive; /* unmatched, in order */
    int32_t begun, last_begun;         /* receives since the last WAITALL, in the order of posting */
    int32_t open_receives, open_sends; /* that WAITALL waits for */
    int32_t push, last_push;           /* messages whose data leaves, the first of them now */
    int8_t waits;                      /* blocked in an operation */
};

/* The servers of one host, each with a queue that needs no list: frames reach it in the order of events. */
struct port {
    double send_bus, up, down, recv_bus; /* ns: when each is free again */
};

/* The whole state of one call of sim_replay, on its stack. Ids are indices of the arrays. */
struct replay {
    const sim_model *model;
    const sim_schedule *schedule;
    struct event *heap;
    int64_t n_heap, room; /* events in the heap, and its capacity */
    uint64_t order;       /* of the next event that is added */
    struct rank *ranks;
    struct port *ports;
    struct message *messages;
    struct receive *receives;
    int32_t n_messages, n_receives; /* begun so far: their arrays have room for all */
    int64_t bytes;                  /* payload of all messages begun so far */
    int failed;                     /* memory for the heap is exhausted: sim_replay gives up */
};

static inline double most(double a, double b)
{
    return a > b ? a : b;
}

/* ---- replay_frames.c */

/* Adds an event. If memory is exhausted, sets r->failed. */
void replay_add(struct replay *r, double at, int kind, int32_t id);
/* Removes the earliest event. The queue is not empty. */
struct event replay_take(struct replay *r);
/* The data of a message leaves, from `at` on, behind the messages that the rank is pushing. */
void replay_push(struct replay *r, int32_t id, double at);
/* The sender's processor begins with a message, at `at` or when its cost per message has passed. */
void replay_begin_push(struct replay *r, int32_t id, double at);
/* Handle the events FRAME, PORT and ACK. */
void replay_push_frame(struct replay *r, int32_t id);
void replay_reach_port(struct replay *r, int32_t id, double at);
void replay_acknowledge(struct replay *r, int32_t id, double at);
/* Returns the time at which the receiver's processor has the message, if it turns to it at `now`. Changes nothing. */
double replay_receive_cost(const struct replay *r, const struct message *m, double now);

/* ---- replay.c */

/* The sender's processor has taken the last frame of a message, at its `cpu`. */
void replay_pushed(struct replay *r, int32_t id);

#endif
