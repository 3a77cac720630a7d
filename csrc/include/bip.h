/*
 * bip.h - BIP, the Basic Interface for Parallelism (Prylli and Tourancheau, Lyon, 1997), on top of VIA.
 *
 * The calls are those of the BIP messages user manual. Lengths are in words of four bytes, buffers are int *, anywhere
 * in memory. Messages are reliable. Messages from one node to another with one tag keep their order. There are two
 * semantics, by length:
 *
 *   short   (fewer than BIPSMALLSIZE words, and more if that is faster on the link) go into a queue at the receiver.
 *           The send blocks only if that queue is full.
 *   long    (all others) go directly into the buffer of the receive, through a pipeline. BIP guaranteed this only if
 *           the receive was posted first. Here the send waits for the receive. With VIAKIT_BIP_STRICT=1 a send without
 *           a posted receive is an error, as BIP allows.
 *
 * One send may be outstanding at a time, and one receive per tag. These are errors: sending to the own node, a message
 * longer than the receive's maxlength, an id that was not returned by a call, and the death of a node. An error calls
 * the error handler. Without a handler the program prints a text and exits with status 1.
 *
 * Programs are started by `viakit run -n N ./program`; without it a program is node 0 of 1. All calls must come from
 * one thread. Link with -lbip -lvipl (`viakit config --cflags --libs` prints their location).
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

/* Connect to all nodes; returns when all can be reached. Call it first: only bip_taginit and bip_onerror may precede
 * it. */
BIP_EXPORT void bip_init(void);

/* End BIP: returns when all sent messages have reached their nodes. Called automatically when the program exits. */
BIP_EXPORT void bip_end(void);

/* ---- sending: the buffer must not change until swait has returned, or stest has returned 1. Both accept the id of
 * tisend any number of times; any other id is an error. */
BIP_EXPORT int bip_tisend(int dst, int tag, int *buf, int length);
BIP_EXPORT void bip_swait(int id);
BIP_EXPORT int bip_stest(int id);
BIP_EXPORT void bip_tsend(int dst, int tag, int *buf, int length); /* blocking */

/* ---- receiving: from any node. The x forms return the sender in *node. All return the length in words; rtestx returns
 * -1 if the message has not arrived. */
BIP_EXPORT int bip_tirecv(int tag, int *buf, int maxlength);
BIP_EXPORT int bip_rwait(int id);
BIP_EXPORT int bip_rtest(int id); /* 1: arrived; 0: not yet */
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
/* Receive a message that has already arrived. Return -1 if none has arrived, or it is long. Never waits. */
BIP_EXPORT int bip_trecvshort(int tag, int *buf, int maxlength, int *node);
/* Return the position of a short message in the queue. It stays valid, and occupies its slot, until bip_tfreemsg. One
 * message per tag at a time. The second form does not wait: it returns NULL if no message has arrived. */
BIP_EXPORT int *bip_tgetmsg(int tag, int *length, int *node);
BIP_EXPORT int *bip_tgetmsgnb(int tag, int *length, int *node);
BIP_EXPORT void bip_tfreemsg(int tag);
/* Give a tag its own queue of nbufs messages of up to `length` words. Its messages then do not fill the queue that the
 * other tags share. */
BIP_EXPORT void bip_taginit(int tag, int nbufs, int length);

/* ---- errors: the handler is called with a text instead of ending the program. If it returns, the failed call returns
 * -1 or NULL if it has a result. */
BIP_EXPORT void bip_onerror(void (*handler)(const char *text));

#ifdef __cplusplus
}
#endif

#endif /* BIP_H */
