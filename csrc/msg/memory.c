/*
 * Memory that other ranks use: allocated so that they can map it, or exposed so that they can write and read it. The
 * contracts are in msg.h.
 *
 *      msg_alloc, msg_free       memory of the channel's NIC           on shm, other ranks map it: one copy per message
 *      msg_expose, msg_hide      any memory, registered on all NICs    a peer uses the handle of the NIC between them
 *      msg_forget                drops registrations that the rendezvous has cached
 *
 * This file owns nothing: registrations and shared memory belong to the channel, which frees the remainder when it
 * closes. Any thread that may use the world may call these functions. None waits.
 */
#include <stdlib.h>

#include "base/plural.h"
#include "msg/channel.h"
#include "viakit.h"

/* If there is no channel (one rank), or it has no such memory, ordinary memory suffices: no other rank accesses it, or
 * none does by RDMA. It is aligned to a page then, as the channel's is. len 0 allocates a byte, so that *memory is a
 * pointer that msg_free accepts. */
int msg_alloc(msg_world *w, size_t len, void **memory)
{
    int code = MSG_SUCCESS;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    if (w->channel == NULL || w->channel->nic == NULL)
        code = posix_memalign(memory, 4096, len ? len : 1) == 0 ? MSG_SUCCESS : msg_fail_plain(w, MSG_ERR_NO_MEMORY);
    else if (viakit_alloc(w->channel->nic(w), len ? len : 1, memory) != VIP_SUCCESS)
        code = msg_fail(w, MSG_ERR_NO_MEMORY, "%zu byte%s of shared memory: %s", len, vk_s(len), viakit_last_error());
    msg_unlock(w);
    return code;
}

/* Registered memory cannot be freed, and the cache may hold a registration. First none is dropped, then only regions
 * that begin at its first byte. Only the allocator has the length, so if that fails, all regions that begin in or after
 * it are dropped. VIP_ERROR_RESOURCE is the provider's answer for memory that is still registered. Returns MSG_SUCCESS,
 * or MSG_ERR_ARG: not memory of msg_alloc, or the program has exposed it. */
static int free_shared(msg_world *w, void *memory)
{
    const size_t to_forget[] = {0, 1, SIZE_MAX - (uintptr_t)memory};
    VIP_RETURN code = VIP_ERROR_RESOURCE;
    for (int i = 0; i < 3 && code == VIP_ERROR_RESOURCE; i++) {
        if (to_forget[i])
            w->channel->forget(w, memory, to_forget[i]);
        code = viakit_free(w->channel->nic(w), memory);
    }
    return code == VIP_SUCCESS ? MSG_SUCCESS
                               : msg_fail(w, MSG_ERR_ARG, "%p cannot be freed: %s", memory, viakit_last_error());
}

int msg_free(msg_world *w, void *memory)
{
    int code = MSG_SUCCESS;
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    if (w->channel && w->channel->nic)
        code = free_shared(w, memory);
    else
        free(memory);
    msg_unlock(w);
    return code;
}

/* Channel tcp registers nothing, so there is nothing to forget. */
void msg_forget(msg_world *w, const void *buf, size_t len)
{
    if (!msg_enter(w))
        return;
    if (w->channel && w->channel->forget)
        w->channel->forget(w, buf, len);
    msg_unlock(w);
}

/* *exposed is set on success only. An exposed range may overlap another: each has its own registration. */
int msg_expose(msg_world *w, void *buf, size_t len, msg_exposed *exposed)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = MSG_SUCCESS;
    if (buf == NULL || len == 0)
        code = msg_fail(w, MSG_ERR_ARG, "nothing to expose (%zu byte%s at %p)", len, vk_s(len), buf);
    /* One rank: the only peer is this rank itself, so the address suffices for msg_put. */
    else if (w->channel == NULL)
        *exposed = (msg_exposed){.address = (uint64_t)(uintptr_t)buf, .len = len};
    else if (w->channel->expose == NULL)
        code = msg_fail(w, MSG_ERR_NOT_SUPPORTED, "channel %s has no one-sided writes", w->channel->name);
    else
        code = w->channel->expose(w, buf, len, exposed);
    msg_unlock(w);
    return code;
}

/* RDMA that is in progress in the range is the caller's concern: csrc/rma synchronizes before it frees a window. */
int msg_hide(msg_world *w, const msg_exposed *exposed)
{
    if (!msg_enter(w))
        return MSG_ERR_PROCESS;
    int code = w->channel && w->channel->hide ? w->channel->hide(w, exposed) : MSG_SUCCESS;
    msg_unlock(w);
    return code;
}
