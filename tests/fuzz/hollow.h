/*
 * hollow.h - a NIC without a wire, for the fuzzers: frames come from the fuzzer's input and go nowhere.
 *
 * The NIC is opened as `loop` without a thread; then its table of operations is replaced by one that makes no system
 * call. Sent frames are counted. It receives the frames of hollow_deliver() and, while a call of the program waits,
 * those of its `feed`. Time stands still unless hollow_time_passes() moves it: the programs that use this file get
 * their clock and their random numbers from it, so that the same inputs in the same order do the same thing every time.
 * An input alone comes to the same but for what outlives it: the keys that are drawn next, the generations of handles,
 * the hour. A finding that it does not show needs those before it as well.
 *
 *   HOLLOW_ETHERNET   loses and checksums, like eth and udp
 *   HOLLOW_SHARED     lossless; the peer's memory can be fetched from and stored into, like shm
 *   HOLLOW_QUEUE      lossless, frames only, like loop
 */
#ifndef HOLLOW_H
#define HOLLOW_H

#include "link/link.h"
#include "via/nic.h"

enum hollow_kind { HOLLOW_ETHERNET, HOLLOW_SHARED, HOLLOW_QUEUE, HOLLOW_KINDS };

#define HOLLOW_PAYLOAD 1024 /* largest frame payload of these links */
#define HOLLOW_FRAME_MAX 4096

struct hollow {
    VIP_NIC_HANDLE handle;
    struct via_nic *nic;
    enum hollow_kind kind;
    struct link_ops ops;         /* ours ... */
    const struct link_ops *loop; /* ... and the real ones, to close with */
    uint64_t n_sent, bytes_sent; /* frames and their bytes */
    uint32_t room;               /* frames the link takes before it says -EAGAIN */
    int can_place;               /* HOLLOW_SHARED: what place() and reach() answer */
    uint64_t n_reports;          /* asynchronous errors that were handled */
    /* Called by poll(); delivers what it likes and returns how many frames. May be NULL. */
    int (*feed)(struct hollow *h, void *context);
    void *feed_context;
    /* In place of the wire: brings a frame to the NIC, through a link's own parser for instance, and returns how
     * many frames it made of it. NULL: link_deliver() is called. The frame lies in memory of exactly its length. */
    int (*carry)(struct hollow *h, const uint8_t *frame, size_t len);
};

extern const uint8_t hollow_unknown_peer[6]; /* the address that frames come from */

/* Opens and sets up. Aborts if that is not possible. */
void hollow_open(struct hollow *h, enum hollow_kind kind, const viakit_nic_options *options);
void hollow_close(struct hollow *h);

/* Returns len bytes in front of an inaccessible page, for good. A read beyond their end faults, with a sanitizer or
 * without. */
uint8_t *hollow_block(size_t len);

/* One frame arrives, at the end of such memory. Returns how many frames carry() made of it. */
int hollow_deliver(struct hollow *h, const uint8_t *frame, size_t len);

/* Time moves by ms and what is due by then is done. */
void hollow_time_passes(struct hollow *h, uint64_t ms);

/* Stops the program with a sentence if an invariant does not hold. The fuzzer keeps the input. */
#define HOLLOW_CHECK(condition, ...)                                       \
    do {                                                                   \
        if (!(condition))                                                  \
            hollow_violation(__FILE__, __LINE__, #condition, __VA_ARGS__); \
    } while (0)
__attribute__((noreturn, format(printf, 4, 5))) void hollow_violation(const char *file, int line, const char *condition,
                                                                      const char *format, ...);

/* Around everything that belongs to an input: within, clock and random numbers are the input's, and the
 * heap must be afterwards as it was before. */
void hollow_input_begins(void);
void hollow_input_ends(void);
void hollow_input_leaves(void); /* the same where something is to stay */
/* Around what is made once and stays for the life of the process: what that leaves at its end is no leak. */
void hollow_set_up_begins(void);
void hollow_set_up_ends(void);

#endif
