/* bip/stream.h - bytes over a connected stream socket, until a deadline. Any thread. A signal that does not end the
 * process does not end a call. */
#ifndef BIP_STREAM_H
#define BIP_STREAM_H

#include <stddef.h>
#include <stdint.h>

/* Waits for poll(2) events. 0; -1 with errno: ETIMEDOUT at the deadline (vk_now), or the error of poll. */
int bip_stream_wait(int fd, short events, uint64_t deadline);
/* Sends or receives exactly len bytes; the descriptor may block or not. 0; -1 with errno: ETIMEDOUT at the deadline,
 * ECONNRESET if the other side has closed the connection, or the error of the socket. */
int bip_stream_send(int fd, const void *bytes, size_t len, uint64_t deadline);
int bip_stream_recv(int fd, void *bytes, size_t len, uint64_t deadline);

#endif
