/*
 * Receives. A receive names a tag and no rank (section 3). Each tag in use has a record: the posted receive, or the
 * messages that came before it, in order. So a tag has a waiting receive or waiting messages, never both.
 *
 *      POSTED --- a short message: copied ---> DONE
 *         \------ a REQUEST: WANTS_GO --- GO sent ---> MOVING --- the last packet's immediate data ---> DONE
 *
 *      tag -> posted          the one receive, until it has been waited for
 *             first .. last   arrivals in order: SHORT (in its slot, or in the tag's own queue) and REQUEST
 *             held            message returned by bip_getmsg
 *             own_free        free places of the tag's own queue (bip_taginit)
 *
 * A short message waits for its receive in its slot of the queue, which occupies a credit of its sender until the
 * program receives it. Or it is copied into the queue that bip_taginit created for its tag. A long message waits at the
 * sender; only its REQUEST is here. So memory for unexpected messages is bounded by n_slots for each rank, and a rank
 * that sends more must wait.
 *
 * If a rank dies, its messages that have arrived can still be received. A REQUEST of that rank can no longer be
 * granted.
 *
 * A posted receive can be cancelled until it has matched. From WANTS_GO on, its buffer is promised to the peer, so only
 * the data or the loss of the peer ends it.
 *
 * Records of tags and receives are never returned to the system before the job closes. Both lists of free records grow
 * to the peak of what was in use.
 *
 * One thread at a time uses a job. Functions that can end a receive may call the layer (bip_recv_end), which may post
 * the next one at once.
 */
#include <stdlib.h>
#include <string.h>

#include "base/crc32c.h"
#include "base/plural.h"
#include "bip/internal.h"

/* ---------------------------------------------------------------- tags */

/* The upper 8 bits of a multiplicative hash: BUCKETS is 256. */
static bip_tag **bucket_of(bip_job *job, int tag)
{
    return &job->buckets[((uint32_t)tag * 2654435761u) >> 24];
}

/* Returns the record of a tag. NULL: it has none. */
static bip_tag *find_tag(bip_job *job, int tag)
{
    bip_tag *t = *bucket_of(job, tag);
    while (t && t->tag != tag)
        t = t->next;
    return t;
}

/* Returns the record of a tag, and creates it if needed. NULL: no memory. */
static bip_tag *make_tag(bip_job *job, int tag)
{
    bip_tag *t = find_tag(job, tag), **bucket = bucket_of(job, tag);
    if (t)
        return t;
    if ((t = job->free_tags) != NULL)
        job->free_tags = t->next;
    else if ((t = malloc(sizeof *t)) == NULL)
        return NULL;
    *t = (bip_tag){.next = *bucket, .tag = tag};
    return *bucket = t;
}

/* Records of unused tags are reused, so programs that count their tags up do not exhaust the memory. */
static void drop_tag(bip_job *job, bip_tag *t)
{
    bip_tag **p = bucket_of(job, t->tag);
    /* The record is in use, or has a queue that must stay. */
    if (t->posted || t->first || t->held || t->n_own)
        return;
    while (*p != t)
        p = &(*p)->next;
    *p = t->next;
    t->next = job->free_tags;
    job->free_tags = t;
}

/* The VIs are closed, so no slot is written any more. Receives that are outstanding end without a report. */
void bip_tags_fini(bip_job *job)
{
    /* One more round than there are buckets, for the free records. */
    for (int i = 0; i <= BUCKETS; i++)
        for (bip_tag *t = i < BUCKETS ? job->buckets[i] : job->free_tags, *next; t; t = next) {
            next = t->next;
            for (uint32_t k = 0; k < t->n_own_memory; k++)
                free(t->own_memory[k]);
            free(t->own_memory);
            free(t);
        }
    for (int i = 0; i < job->n_recvs; i++)
        free(job->recvs[i]);
    free(job->recvs);
}

/* A second call for the same tag adds places of the length chosen by the first call. A place is an arrival followed
 * by its data, in one block of memory for all n. */
int bip_taginit_bytes(bip_job *job, int tag, int n, size_t len)
{
    size_t each = (sizeof(bip_arrival) + len + 15) & ~(size_t)15;
    if (n < 1 || n > 65536 || len > 65536)
        return bip_fail(job, BIP_ERR_ARGUMENT, "a queue of %d message%s of %zu byte%s: 1 to 65536 of up to 65536 bytes",
                        n, vk_s(n), len, vk_s(len));
    bip_tag *t = make_tag(job, tag);
    if (t == NULL)
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory");
    if (t->own_memory && len > t->own_len)
        return bip_fail(job, BIP_ERR_ARGUMENT, "tag %d has a queue of messages of %zu byte%s already", tag, t->own_len,
                        vk_s(t->own_len));
    len = t->own_memory ? t->own_len : len;
    each = (sizeof(bip_arrival) + len + 15) & ~(size_t)15;
    char *memory = malloc((size_t)n * each);
    char **all = memory ? realloc(t->own_memory, (t->n_own_memory + 1) * sizeof *all) : NULL;
    if (all == NULL) {
        free(memory);
        drop_tag(job, t);
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory for a queue of %d message%s of %zu byte%s", n, vk_s(n), len,
                        vk_s(len));
    }
    all[t->n_own_memory++] = memory;
    t->own_memory = all;
    t->own_len = len;
    t->n_own += (uint32_t)n;
    job->memory += (size_t)n * each;
    for (int i = 0; i < n; i++) {
        bip_arrival *a = (bip_arrival *)(void *)(memory + (size_t)i * each);
        *a = (bip_arrival){.next = t->own_free, .data = (char *)(a + 1)};
        t->own_free = a;
    }
    return 0;
}

/* ---------------------------------------------------------------- matching */

/* The program has the message. Posts its slot again (and owes a credit), or frees its place in the tag's own queue. */
static void release(bip_tag *t, bip_arrival *a)
{
    if (a->slot) {
        bip_free_slot(a->slot);
        return;
    }
    a->next = t->own_free;
    t->own_free = a;
}

static void end_recv(bip_job *job, bip_recv *r);

/* May call the layer, which may at once post the next receive under the same tag. So a noted receive releases its
 * tag and place first. */
void bip_recv_end(bip_job *job, bip_recv *r, int code)
{
    peers_cache_put(r->region);
    r->region = NULL;
    r->code = code;
    r->state = RECV_DONE;
    if (code == 0)
        BIP_COUNT(job, bytes_received, r->len);
    else
        bip_fail(job, code, "a message of %zu byte%s with tag %d of rank %d for a buffer of %zu: %s", r->len,
                 vk_s(r->len), r->tag->tag, r->peer->rank, r->max_len, bip_code_text(code));
    if (r->noted) {
        end_recv(job, r);
        job->layer.received(job->layer.context, r->cookie, code);
    }
}

/* Copies to the receive's buffer. The place is free only after the copy. */
static void take_short(bip_job *job, bip_tag *t, bip_arrival *a, void *buf)
{
    if (a->head.len)
        memcpy(buf, a->data, a->head.len);
    BIP_COUNT(job, short_received, 1);
    release(t, a);
}

/* Replies to a REQUEST with a code instead of a GO, which ends the send at the peer. Without a buffer, bip_progress
 * sends it later; `requesting` stays set until then. */
static void refuse(bip_peer *peer, int code)
{
    if (peer->lost)
        return;
    if (bip_control(peer, KIND_REFUSE, code)) {
        peer->requesting = false;
        return;
    }
    peer->refusal = code;
    bip_job_of(peer)->control_due = true;
}

/* A receive has matched its message. There are four cases: too long (an error on both sides), short (copied,
 * complete), a REQUEST of a lost rank (an error), and a REQUEST (GO is due). Each releases the arrival's slot,
 * because r holds all data needed. */
static void match(bip_job *job, bip_recv *r, bip_arrival *a)
{
    bip_peer *peer = a->peer;
    r->peer = peer;
    r->len = a->head.len;
    if (r->len > r->max_len) {
        bool is_request = a->head.kind == KIND_REQUEST;
        release(r->tag, a);
        bip_recv_end(job, r, BIP_ERR_TOO_LONG);
        if (is_request)
            refuse(peer, BIP_ERR_TOO_LONG);
    } else if (a->head.kind == KIND_SHORT) {
        take_short(job, r->tag, a, r->buf);
        bip_recv_end(job, r, 0);
    } else if (peer->lost) {
        release(r->tag, a);
        bip_recv_end(job, r, peer->bye_arrived ? BIP_ERR_LEFT : BIP_ERR_PEER);
    } else {
        release(r->tag, a);
        r->state = RECV_WANTS_GO;
        r->next = job->wants_go;
        job->wants_go = r;
        bip_recv_step(job);
    }
}

/* Sends all GOs that are possible now. */
void bip_recv_step(bip_job *job)
{
    /* Each receive advances as far as it can. A receive without a registration or a buffer stays in the list, and
     * progress tries it again. */
    for (bip_recv **p = &job->wants_go, *r; (r = *p) != NULL;) {
        bip_peer *peer = r->peer;
        struct peers_slot *slot = NULL;
        if (!peer->lost && r->region == NULL && (r->region = bip_region_get(peer, r->buf, r->len)) == NULL) {
            p = &r->next; /* too many buffers are in use, or too much memory */
            continue;
        }
        if (!peer->lost && (slot = bip_take_send(peer, 0)) == NULL) {
            p = &r->next;
            continue;
        }
        *p = r->next;
        if (peer->lost) {
            bip_recv_end(job, r, peer->bye_arrived ? BIP_ERR_LEFT : BIP_ERR_PEER);
            continue;
        }
        bip_go go = {.head = {.kind = KIND_GO, .len = r->len},
                     .address = (uint64_t)(uintptr_t)r->buf,
                     .handle = r->region->handle};
        memcpy(slot->buf, &go, sizeof go);
        r->state = RECV_MOVING;
        /* One at a time for each peer: it sends no other REQUEST before its data has arrived (`requesting`). */
        peer->incoming = r;
        bip_post_head(peer, slot, sizeof go);
    }
}

/* All of a long message is in its buffer: the immediate data followed the last packet, on the same VI. */
void bip_long_arrived(bip_peer *peer, uint32_t immediate)
{
    bip_job *job = bip_job_of(peer);
    bip_recv *r = peer->incoming;
    if (r == NULL)
        return; /* written before the receive was dropped, which happens only if the peer is lost */
    peer->incoming = NULL;
    peer->requesting = false;
    /* BYE reports this number to the peer (progress.c: handle_bye). */
    peer->long_received++;
    uint32_t expected = job->options.checksum ? vk_crc32c(0, r->buf, r->len) : (uint32_t)r->len;
    BIP_COUNT(job, long_received, 1);
    bip_recv_end(job, r, immediate == expected ? 0 : BIP_ERR_DAMAGED);
}

/* Delivers a message or REQUEST to its waiting receive, or queues it at its tag in the order of arrival. */
void bip_arrived(bip_arrival *a)
{
    bip_job *job = bip_job_of(a->peer);
    bip_tag *t = make_tag(job, a->head.tag);
    if (t == NULL) { /* It stays in its slot for good. The queue is one shorter, and the job fails when it is full. */
        bip_fail(job, BIP_ERR_RESOURCE, "no memory");
        return;
    }
    if (t->posted && t->posted->state == RECV_POSTED) {
        match(job, t->posted, a);
        return;
    }
    BIP_COUNT(job, unexpected, 1);
    /* Enforces BIP's rule for its users ("a receive need to be posted before the send", section 3). */
    if (job->options.strict && a->head.kind == KIND_REQUEST) {
        bip_peer *peer = a->peer;
        bip_free_slot(a->slot);
        refuse(peer, BIP_ERR_NOT_POSTED);
        drop_tag(job, t);
        return;
    }
    /* Copied into the tag's own queue if it fits: the shared place, and its sender's credit, are free at once. */
    if (t->own_free && a->head.kind == KIND_SHORT && a->head.len <= t->own_len) {
        bip_arrival *own = t->own_free;
        t->own_free = own->next;
        own->peer = a->peer;
        own->head = a->head;
        memcpy(own->data, a->data, a->head.len);
        bip_free_slot(a->slot);
        a = own;
    }
    a->next = NULL;
    if (t->first)
        t->last->next = a;
    else
        t->first = a;
    t->last = a;
}

/* Removes the tag's oldest message. `last` is stale when the list is empty; only first == NULL counts. */
static bip_arrival *take_first(bip_tag *t)
{
    bip_arrival *a = t->first;
    t->first = a->next;
    return a;
}

/* ---------------------------------------------------------------- the calls */

/* Returns a free record, or a new one. The table doubles; records never move. */
static bip_recv *new_recv(bip_job *job)
{
    bip_recv *r = job->free_recvs;
    if (r) {
        job->free_recvs = r->next;
        return r;
    }
    /* Ids have 16 bits for the index. */
    if (job->n_recvs == 65536)
        return NULL;
    if ((job->n_recvs & (job->n_recvs - 1)) == 0) { /* a power of two, or none yet: double */
        bip_recv **more = realloc(job->recvs, (job->n_recvs ? 2 * (size_t)job->n_recvs : 1) * sizeof *more);
        if (more == NULL)
            return NULL;
        job->recvs = more;
    }
    if ((r = calloc(1, sizeof *r)) == NULL)
        return NULL;
    r->index = job->n_recvs;
    return job->recvs[job->n_recvs++] = r;
}

/* Old ids are not found, until 8192 later receives have used their place. */
static bip_recv *find_recv(bip_job *job, int id)
{
    int index = id & 0xffff;
    if (id < 0 || index >= job->n_recvs)
        return NULL;
    bip_recv *r = job->recvs[index];
    return r->state != RECV_FREE && (int)r->generation == id >> 16 ? r : NULL;
}

/* Ends the receive. Its tag may be posted again, and the next use of this place has another generation. */
static void end_recv(bip_job *job, bip_recv *r)
{
    bip_tag *t = r->tag;
    t->posted = NULL;
    drop_tag(job, t);
    r->state = RECV_FREE;
    /* 13 bits, so that with 16 bits of the index an id is never negative. */
    r->generation = (r->generation + 1) & 0x1fff;
    r->next = job->free_recvs;
    job->free_recvs = r;
}

/* Returns the id, or an error. Matches at once if a message has arrived. A noted receive may end before this
 * returns. */
static int begin(bip_job *job, int tag, void *buf, size_t max_len, bool noted, uint64_t cookie)
{
    if (buf == NULL && max_len)
        return bip_fail(job, BIP_ERR_ARGUMENT, "room for %zu byte%s without a buffer", max_len, vk_s(max_len));
    bip_tag *t = make_tag(job, tag);
    /* Otherwise two receives would compete for a message. */
    if (t && t->posted)
        return bip_fail(job, BIP_ERR_BUSY, "a receive with tag %d is outstanding: wait for it first", tag);
    bip_recv *r = t ? new_recv(job) : NULL;
    if (r == NULL)
        return bip_fail(job, BIP_ERR_RESOURCE, "no memory, or 65536 receives are outstanding");
    r->state = RECV_POSTED;
    r->tag = t;
    r->buf = buf;
    r->max_len = max_len;
    r->len = 0;
    r->code = 0;
    r->peer = NULL;
    r->noted = noted;
    r->cookie = cookie;
    t->posted = r;
    int id = (int)(r->generation << 16) | r->index;
    if (t->first)
        match(job, r, take_first(t));
    return id;
}

int bip_irecv_bytes(bip_job *job, int tag, void *buf, size_t max_len)
{
    /* Messages that arrived until now came before their receive. This could not be detected later. */
    if (job->options.strict)
        bip_progress(job);
    return begin(job, tag, buf, max_len, false, 0);
}

/* For a layer: the id serves bip_rcancel_id only, and ends with the callback. */
int bip_irecv_noted(bip_job *job, int tag, void *buf, size_t max_len, uint64_t cookie)
{
    return begin(job, tag, buf, max_len, true, cookie);
}

/* Reports completion once; the id is invalid afterwards. Makes progress if the receive has not ended. */
int bip_rtest_id(bip_job *job, int id, size_t *len, int *node)
{
    bip_recv *r = find_recv(job, id);
    if (r == NULL)
        return bip_fail(job, BIP_ERR_ARGUMENT, "there is no receive %d, or it has been waited for or taken back", id);
    if (r->state != RECV_DONE)
        bip_progress(job);
    if (r->state != RECV_DONE)
        return 0;
    int code = r->code;
    if (len)
        *len = r->len;
    if (node && r->peer)
        *node = r->peer->rank;
    end_recv(job, r);
    return code ? code : 1;
}

/* Returns 0 if a message can still arrive, else the reason. A receive names no rank, so it may wait for the rank
 * that died. Any death therefore ends all waits, except for messages that have arrived or are being written into a
 * buffer. */
int bip_receive_error(bip_job *job)
{
    if (job->dead >= 0)
        return bip_fail(job, job->dead_code, "rank %d %s", job->dead,
                        job->dead_code == BIP_ERR_PEER ? "died" : "sent a message that was damaged or lost on the way");
    if (job->options.n_ranks == 1)
        return bip_fail(job, BIP_ERR_LEFT, "there is one rank only, so no message can arrive");
    if (job->n_left == job->options.n_ranks - 1)
        return bip_fail(job, BIP_ERR_LEFT, "all other ranks have left: nothing can come any more");
    return 0;
}

/* Waits for the end of the receive. TIMEOUT and INTERRUPTED leave it posted. Any other error means that nothing can
 * arrive any more, and withdraws it. */
int bip_rwait_id(bip_job *job, int id, size_t *len, int *node, int timeout_ms)
{
    bip_wait wait;
    int done = bip_rtest_id(job, id, len, node);
    if (done)
        return done;
    bip_wait_begin(job, &wait, timeout_ms);
    /* The record does not move, and the state of this receive cannot return to FREE before rtest reports it. */
    bip_recv *r = find_recv(job, id);
    while (r->state != RECV_DONE) {
        int code = bip_wait_step(job, &wait);
        if (code == 0 && r->state == RECV_POSTED)
            code = bip_receive_error(job);
        if (code && r->state != RECV_DONE) {
            if (code != BIP_ERR_TIMEOUT && code != BIP_ERR_INTERRUPTED)
                bip_rcancel_id(job, id);
            return code;
        }
    }
    return bip_rtest_id(job, id, len, node);
}

/* Withdraws a receive, unless data is arriving: the peer may then be writing into the buffer. */
int bip_rcancel_id(bip_job *job, int id)
{
    bip_recv *r = find_recv(job, id);
    if (r == NULL)
        return bip_fail(job, BIP_ERR_ARGUMENT, "there is no receive %d, or it has been waited for or taken back", id);
    if (r->state == RECV_WANTS_GO || r->state == RECV_MOVING)
        return bip_fail(job, BIP_ERR_BUSY, "data of rank %d is on its way into the buffer", r->peer->rank);
    end_recv(job, r);
    return 0;
}

/* Receives a short message that is first in its tag's queue. Returns 1 if received, 0 if none or a long one is
 * first, or an error. Never waits. A message too long for buf is an error and is discarded, because its place is
 * needed. */
int bip_recv_short(bip_job *job, int tag, void *buf, size_t max_len, size_t *len, int *node)
{
    bip_tag *t = find_tag(job, tag);
    if (t == NULL || t->first == NULL) {
        bip_progress(job);
        t = find_tag(job, tag);
    }
    if (t && t->posted)
        return bip_fail(job, BIP_ERR_BUSY, "a receive with tag %d is outstanding: wait for it first", tag);
    if (t == NULL || t->first == NULL || t->first->head.kind != KIND_SHORT)
        return 0;
    bip_arrival *a = take_first(t);
    size_t n = a->head.len;
    *len = n;
    *node = a->peer->rank;
    if (n > max_len)
        release(t, a);
    else
        take_short(job, t, a, buf);
    drop_tag(job, t);
    if (n > max_len)
        return bip_fail(job, BIP_ERR_TOO_LONG, "a message of %zu byte%s with tag %d for a buffer of %zu", n, vk_s(n),
                        tag, max_len);
    BIP_COUNT(job, bytes_received, n);
    return 1;
}

/* Returns the message in place, without a copy, until bip_freemsg. Its sender's credit is in use until then. Returns
 * 1, 0 for none (timeout 0), or an error. Each step looks up the tag again, because records of tags are created and
 * freed. */
int bip_getmsg(bip_job *job, int tag, const void **buf, size_t *len, int *node, int timeout_ms)
{
    bip_wait wait;
    bip_tag *t = find_tag(job, tag);
    bool waits = timeout_ms != 0;
    if (t && (t->posted || t->held))
        return bip_fail(job, BIP_ERR_BUSY, "a receive with tag %d is outstanding, or bip_tfreemsg is missing", tag);
    bip_progress(job);
    bip_wait_begin(job, &wait, timeout_ms);
    while ((t = find_tag(job, tag)) == NULL || t->first == NULL) {
        int code = waits ? bip_wait_step(job, &wait) : 0;
        if (code == 0 && waits)
            code = bip_receive_error(job);
        if (code || !waits) {
            t = find_tag(job, tag);
            if (t && t->first)
                break;
            return code;
        }
    }
    if (t->first->head.kind != KIND_SHORT)
        return bip_fail(job, BIP_ERR_ARGUMENT, "the next message with tag %d is a long one, of %llu byte%s: receive it",
                        tag, (unsigned long long)t->first->head.len, vk_s(t->first->head.len));
    t->held = take_first(t);
    *buf = t->held->data;
    *len = t->held->head.len;
    *node = t->held->peer->rank;
    BIP_COUNT(job, short_received, 1);
    BIP_COUNT(job, bytes_received, *len);
    return 1;
}

/* The slot is posted again, and the sender's credit is owed, only now: until then the program reads the data in
 * place. */
int bip_freemsg(bip_job *job, int tag)
{
    bip_tag *t = find_tag(job, tag);
    if (t == NULL || t->held == NULL)
        return bip_fail(job, BIP_ERR_ARGUMENT, "no message with tag %d has been given out", tag);
    release(t, t->held);
    t->held = NULL;
    drop_tag(job, t);
    return 0;
}
