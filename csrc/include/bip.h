/*
 * bip.h - BIP, the Basic Interface for Parallelism (Prylli and Tourancheau, Lyon, 1997), on top of VIA.
 *
 * The calls are those of the BIP messages user manual. Lengths are in words of four bytes, buffers are int *,
 * anywhere in memory. Messages are reliable, and keep their order from one node to another with one tag. Two
 * semantics, by length:
 *
 *   short   (fewer than BIPSMALLSIZE words, and more where the link makes it worth while) go into a queue at the
 *           receiver. The send does not block until that queue is full.
 *   long    (all others) go straight into the buffer of the receive, through a pipeline. BIP guaranteed this
 *           only if the receive was posted first; here the send waits for it, and with VIAKIT_BIP_STRICT=1 it is an
 *           error, as it may have been then.
 *
 * One send may be outstanding at a time, and one receive per tag. Sending to oneself is an error. So are a message
 * longer than the receive's maxlength, an id that was not given, and a node that dies: the error handler is called, and
 * unless there is one, the program ends with a text and status 1.
 *
 * Programs are started by `viakit run -n N ./program`; alone, they are node 0 of 1. All calls are for one thread.
 * Link with -lbip -lvipl (`viakit config --cflags --libs` tells where they are).
 */
#ifndef BIP_H
#define BIP_H

#ifdef __cplusplus
extern "C" {
#endif

#if defined(__GNUC__)
#define BIP_EXPORT __attribute__((visibility("default")))
#else
#define BIP_EXPORT
#endif

#define BIPSMALLSIZE 64 /* words: shorter messages are short on every link */

/* Valid after bip_init. */
BIP_EXPORT extern int bip_mynode, bip_numnodes;

/* To be called first; only bip_taginit and bip_onerror may come before. Returns when all nodes can be reached. */
BIP_EXPORT void bip_init(void);

/* Leaves: what was sent has reached its nodes. Called by itself when the program exits. */
BIP_EXPORT void bip_end(void);

/* ---- sending: the buffer must not change until swait has returned, or stest has given 1. Both are for the id of
 * tisend, any number of times; an id that tisend has not given is an error. */
BIP_EXPORT int bip_tisend(int dst, int tag, int *buf, int length);
BIP_EXPORT void bip_swait(int id);
BIP_EXPORT int bip_stest(int id);
BIP_EXPORT void bip_tsend(int dst, int tag, int *buf, int length); /* blocking */

/* ---- receiving: from any node. The x forms tell which (*node), and all return the length in words; rtestx -1: not
 * yet. */
BIP_EXPORT int bip_tirecv(int tag, int *buf, int maxlength);
BIP_EXPORT int bip_rwait(int id);
BIP_EXPORT int bip_rtest(int id); /* 1: it is there; 0: not yet */
BIP_EXPORT int bip_rwaitx(int id, int *node);
BIP_EXPORT int bip_rtestx(int id, int *node);
BIP_EXPORT int bip_trecv(int tag, int *buf, int maxlength);
BIP_EXPORT int bip_trecvx(int tag, int *buf, int maxlength, int *node);

/* ---- the same with the tag 0 */
BIP_EXPORT void bip_send(int dst, int *buf, int length);
BIP_EXPORT int bip_isend(int dst, int *buf, int length);
BIP_EXPORT int bip_recv(int *buf, int maxlength);
BIP_EXPORT int bip_recvx(int *buf, int maxlength, int *node);
BIP_EXPORT int bip_irecv(int *buf, int maxlength);

/* ---- short messages only */
/* A message that is there already; -1 if there is none, or a long one. Never waits. */
BIP_EXPORT int bip_trecvshort(int tag, int *buf, int maxlength, int *node);
/* Where a short message lies in the queue: valid, and its place taken, until bip_tfreemsg. One per tag at a time. The
 * second form does not wait: NULL if there is none. */
BIP_EXPORT int *bip_tgetmsg(int tag, int *length, int *node);
BIP_EXPORT int *bip_tgetmsgnb(int tag, int *length, int *node);
BIP_EXPORT void bip_tfreemsg(int tag);
/* Gives a tag a queue of its own, nbufs messages of up to `length` words: they no longer fill the queue that all tags
 * share. */
BIP_EXPORT void bip_taginit(int tag, int nbufs, int length);

/* ---- errors: called with a text in place of ending the program. If it returns, so does the call: -1 or NULL where
 * there is a result. */
BIP_EXPORT void bip_onerror(void (*handler)(const char *text));

#ifdef __cplusplus
}
#endif

#endif /* BIP_H */
