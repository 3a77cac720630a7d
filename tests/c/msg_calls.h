/*
 * msg_calls.h - calls on the message engine that tests need often and that the engine itself does not have.
 */
#ifndef MSG_CALLS_H
#define MSG_CALLS_H

#include "msg/msg.h"

/* Waits for all n requests in turn. statuses is NULL or has n entries. */
static inline int call_wait_all(msg_world *w, int n, msg_request **requests, msg_status *statuses)
{
    int code = MSG_SUCCESS;
    for (int i = 0; i < n && code == MSG_SUCCESS; i++)
        code = msg_wait(w, &requests[i], statuses ? &statuses[i] : NULL, MSG_FOREVER);
    return code;
}

/* Sends, and receives at the same time. */
static inline int call_sendrecv(msg_world *w, int context, const void *out, size_t out_len, int dst, int out_tag,
                                void *in, size_t in_len, int src, int in_tag, msg_status *status)
{
    msg_request *r = NULL;
    msg_status own;
    int code = msg_irecv(w, context, in, in_len, src, in_tag, &r);
    if (code == MSG_SUCCESS)
        code = msg_send(w, context, out, out_len, dst, out_tag, MSG_STANDARD);
    status = status ? status : &own;
    if (code == MSG_SUCCESS)
        code = msg_wait(w, &r, status, MSG_FOREVER);
    return code ? code : status->error;
}

/* Receives a message that msg_mprobe removed from the queue, and waits for it. */
static inline int call_mrecv(msg_world *w, msg_message **message, void *buf, size_t len, msg_status *status)
{
    msg_request *r = NULL;
    int code = msg_imrecv(w, message, buf, len, &r);
    if (code == MSG_SUCCESS)
        code = msg_wait(w, &r, status, MSG_FOREVER);
    return code ? code : status->error;
}

#endif
