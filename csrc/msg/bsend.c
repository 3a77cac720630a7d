/*
 * The attached buffer for buffered sends: pieces of the caller's memory, first fit. All bookkeeping lies in
 * that memory itself, so a buffered send allocates nothing.
 *
 *      | header | data ... | header | data ... | header | data ... |      a header: length of its data, in use or not
 *      begin                                                      end
 *
 * Neighbouring free pieces become one when a piece is looked for. Invariant: the pieces follow each
 * other without a gap from begin to end, which is how the next one is found. The caller promised not to
 * touch the memory until it is detached (MPI_Buffer_attach).
 *
 * A piece belongs to one detached send (send.c) and is given back by msg_complete, whatever way the send ends:
 * so a rank that dies does not keep detaching from its end.
 */
#include <stdlib.h>

#include "base/plural.h"
#include "channel.h"

struct piece {
    size_t len; /* bytes of data behind this header; a multiple of 16 */
    size_t used;
};
_Static_assert(sizeof(struct piece) + 16 + 15 < MSG_BSEND_OVERHEAD, "what msg.h promises");

/* What was given is handed back unchanged by detach; what is used of it begins and ends at multiples of 16, and
 * a buffer too small for one header has begin = end = NULL: then every send finds no room. */
struct msg_buffer {
    void *given;
    size_t given_len, n_used;
    char *begin, *end; /* aligned to 16 */
};

static struct piece *next_of(struct piece *p)
{
    return (struct piece *)(void *)((char *)(p + 1) + p->len);
}

/* A piece of at least len bytes, aligned to 16, or NULL: none attached, or no room. Lock held, as below. */
void *msg_buffer_get(msg_world *w, size_t len)
{
    struct msg_buffer *b = w->attached;
    size_t want = (len + 15) & ~(size_t)15;
    if (b == NULL || want < len)
        return NULL;
    for (struct piece *p = (struct piece *)(void *)b->begin; (char *)p < b->end; p = next_of(p)) {
        if (p->used)
            continue;
        /* All free pieces behind this one are swallowed. A free neighbour before it would have
         * swallowed it already. */
        for (struct piece *q = next_of(p); (char *)q < b->end && !q->used; q = next_of(p))
            p->len += sizeof *q + q->len;
        if (p->len < want)
            continue;
        if (p->len - want > sizeof *p) { /* the rest stays free */
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

void msg_buffer_put(msg_world *w, void *data)
{
    ((struct piece *)data - 1)->used = 0;
    w->attached->n_used--;
}

int msg_buffer_attach(msg_world *w, void *buf, size_t len)
{
    int code = MSG_SUCCESS;
    msg_lock(w);
    if (buf == NULL && len)
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
        if (end > begin + sizeof(struct piece)) {
            b->begin = (char *)begin;
            b->end = (char *)end;
            *(struct piece *)begin = (struct piece){end - begin - sizeof(struct piece), 0};
        }
    }
    msg_unlock(w);
    return code;
}

static int is_unused(void *argument)
{
    return ((struct msg_buffer *)argument)->n_used == 0;
}

/* Waits until the last piece has been sent: MPI promises that detaching is how one waits for buffered sends. */
int msg_buffer_detach(msg_world *w, void **buf, size_t *len)
{
    int code = MSG_SUCCESS;
    msg_lock(w);
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
