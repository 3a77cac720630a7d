/*
 * The attached buffer for buffered sends: pieces of the caller's memory, first fit. All bookkeeping lies in that memory
 * itself, so a buffered send into the caller's memory allocates none.
 *
 *      | header | data ... | header | data ... | header | data ... |      a header: length of its data, in use or not
 *      begin                                                      end
 *
 * Neighbouring free pieces are merged during the search for a piece. Invariant: the pieces follow each other without a
 * gap from begin to end, so each header leads to the next. The caller must not touch the memory until it is detached
 * (MPI_Buffer_attach).
 *
 * An automatic buffer (MPI 4.1, BUFFER_AUTOMATIC) has no memory of its caller's. Each of its pieces is allocated for
 * one message, so a buffered send fails only if the process has no memory left.
 *
 * A piece belongs to one detached send (send.c). msg_complete frees it, however the send ends, so a rank that dies does
 * not block the detach.
 */
#include <stdlib.h>

#include "base/plural.h"
#include "msg/channel.h"

struct piece {
    size_t len;  /* bytes of data after this header; a multiple of 16 */
    size_t used; /* 1: a message has it */
};
_Static_assert(sizeof(struct piece) + 16 + 15 < MSG_BSEND_OVERHEAD, "what msg.h promises");

/* detach returns the memory as it was given. The part in use begins and ends at multiples of 16. In a buffer too
 * small for one header, begin and end are NULL, and every send fails for lack of room. */
struct msg_buffer {
    void *given;
    size_t given_len, n_used; /* bytes of it; pieces in use */
    char *begin, *end;        /* aligned to 16 */
    int automatic;            /* pieces are allocated one by one */
};

/* The header behind this piece; the last piece leads to `end`. */
static struct piece *next_of(struct piece *p)
{
    return (struct piece *)(void *)((char *)(p + 1) + p->len);
}

/* Returns a piece of at least len bytes, aligned to 16, or NULL: none attached, or no room. Lock held, as below. */
void *msg_buffer_get(msg_world *w, size_t len)
{
    struct msg_buffer *b = w->attached;
    size_t want = (len + 15) & ~(size_t)15;
    if (b == NULL || want < len)
        return NULL;
    if (b->automatic) {
        struct piece *p = malloc(sizeof *p + want);
        b->n_used += p != NULL;
        return p ? p + 1 : NULL;
    }
    for (struct piece *p = (struct piece *)(void *)b->begin; (char *)p < b->end; p = next_of(p)) {
        if (p->used)
            continue;
        /* Merges all free pieces after this one. A free neighbour before it would have merged it already. */
        for (struct piece *q = next_of(p); (char *)q < b->end && !q->used; q = next_of(p))
            p->len += sizeof *q + q->len;
        if (p->len < want)
            continue;
        if (p->len - want > sizeof *p) { /* the remainder stays free */
            struct piece *rest = (struct piece *)(void *)((char *)(p + 1) + want);
            *rest = (struct piece){p->len - want - sizeof *rest, 0};
            p->len = want;
        }
        p->used = 1;
        b->n_used++;
        return p + 1;
    }
    return NULL;
}

/* Frees the piece whose data that is. Lock held. It merges nothing: the next search does. */
void msg_buffer_put(msg_world *w, void *data)
{
    struct piece *p = (struct piece *)data - 1;
    p->used = 0;
    w->attached->n_used--;
    if (w->attached->automatic)
        free(p);
}

/* The world is being freed, and the send of the piece's message has not completed. A piece in the caller's memory is not touched,
 * because the caller may have freed that memory without detaching it. */
void msg_buffer_abandon(msg_world *w, void *data)
{
    if (w->attached && w->attached->automatic)
        free((struct piece *)data - 1);
}

/* The memory begins as one free piece. A world has one attached buffer at a time, as MPI requires. */
int msg_buffer_attach(msg_world *w, void *buf, size_t len)
{
    int code = MSG_SUCCESS;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int automatic = buf == NULL && len == MSG_BUFFER_AUTOMATIC;
    if (buf == NULL && len && !automatic)
        code = msg_fail(w, MSG_ERR_ARG, "a buffer of %zu byte%s at NULL cannot be attached", len, vk_s(len));
    else if (w->attached)
        code = msg_fail(w, MSG_ERR_BUFFER, "a buffer is attached already: detach it first");
    else if ((w->attached = calloc(1, sizeof *w->attached)) == NULL)
        code = msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    else {
        struct msg_buffer *b = w->attached;
        uintptr_t begin = ((uintptr_t)buf + 15) & ~(uintptr_t)15, end = ((uintptr_t)buf + len) & ~(uintptr_t)15;
        b->given = buf;
        b->given_len = len;
        b->automatic = automatic;
        if (!automatic && end > begin + sizeof(struct piece)) {
            b->begin = (char *)begin;
            b->end = (char *)end;
            *(struct piece *)begin = (struct piece){end - begin - sizeof(struct piece), 0};
        }
    }
    msg_unlock(w);
    return code;
}

/* A condition for msg_wait_until. */
static int is_unused(void *argument)
{
    return ((struct msg_buffer *)argument)->n_used == 0;
}

/* Waits until the last piece has been sent: in MPI, detaching is the way to wait for buffered sends. */
int msg_buffer_detach(msg_world *w, void **buf, size_t *len)
{
    int code = MSG_SUCCESS;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    struct msg_buffer *b = w->attached;
    if (b)
        code = msg_wait_until(w, is_unused, b, MSG_FOREVER);
    if (code == MSG_SUCCESS) {
        *buf = b ? b->given : NULL;
        *len = b ? b->given_len : 0;
        free(b);
        w->attached = NULL;
    }
    msg_unlock(w);
    return code;
}
