/*
 * conn_server.h - the server's requests (struct via_conn in via/pending.h), for the two files that handle them:
 * conn_server.c has the protocol, conn_server_calls.c the VIPL calls.
 */
#ifndef VIAKIT_CONN_SERVER_H
#define VIAKIT_CONN_SERVER_H

#include "link/frame_format.h"
#include "via/nic.h"
#include "via/pending.h"
#include "vipl.h"

/* A call of VipConnectAccept that waits for the client's proof. On its stack; conn->acceptance points to it until the
 * result is set or the call ends. */
struct via_acceptance {
    struct via_conn *conn; /* NULL once it is decided */
    VIP_RETURN result;
};

/* Send a frame of this kind to the requester. body is the accepting VI's description, for ACCEPT, or NULL: the frame
 * then has only the number of the request. */
void conn_server_answer(struct via_conn *conn, int kind, const struct wire_connect *body);
/* Send the reply for the present state of the request, first or repeated. None is sent for one that is CANCELLED, or
 * whose VI has been disconnected since it accepted. */
void conn_server_reply(struct via_conn *conn);
/* Remove a request and free it: its handle becomes invalid. A VI that it has connected stays connected, but its ACCEPT
 * is no longer repeated. A VI that still waits for the client's proof is idle afterwards, and its VipConnectAccept
 * returns VIP_TIMEOUT. The caller makes sure that no waiter points to the request. */
void conn_server_forget(struct via_nic *nic, struct via_conn *conn);

#endif
