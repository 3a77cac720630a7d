/*
 * machine_memory.c - the memory of the fuzzers' machine: its areas, and the check that only granted bytes have changed.
 */
#include <string.h>

#include "machine_inside.h"

uint8_t *machine_area(struct world *w, int which, size_t *len)
{
    struct memory *m = w->m;
    uint8_t *const at[N_AREAS] = {m->granted,         m->read_only,       m->other_tag,           m->stale,
                                  (uint8_t *)m->recv, (uint8_t *)m->send, (uint8_t *)m->recv_desc};
    const size_t sizes[N_AREAS] = {sizeof m->granted,
                                   sizeof m->read_only,
                                   sizeof m->other_tag,
                                   sizeof m->stale,
                                   sizeof m->recv,
                                   sizeof m->send,
                                   (size_t)((uint8_t *)&m->guard6 - (uint8_t *)m->recv_desc)};
    *len = sizes[which];
    return at[which];
}

/* Rights as the areas' names promise (machine_inside.h); AREA_STALE is deregistered when the world stands. */
VIP_MEM_HANDLE machine_register_area(struct world *w, int which)
{
    size_t len;
    uint8_t *p = machine_area(w, which, &len);
    VIP_MEM_ATTRIBUTES a = {.Ptag = which == AREA_OTHER_TAG ? w->second_tag : w->tag,
                            .EnableRdmaWrite = which == AREA_WRITE || which == AREA_OTHER_TAG || which == AREA_STALE,
                            .EnableRdmaRead = which == AREA_READ};
    HOLLOW_CHECK(VipRegisterMem(w->h.handle, p, len, &a, &w->handles[which]) == VIP_SUCCESS, "%s", viakit_last_error());
    return w->handles[which];
}

/* Long enough for the largest area; set once, as it is compared after every input. */
static int all_fill(const uint8_t *p, size_t len)
{
    static uint8_t fill[RECV_BYTES + GUARD + 1024];
    if (fill[0] == 0)
        memset(fill, FILL, sizeof fill);
    return memcmp(p, fill, len) == 0;
}

#define CHECK_FILL(field) HOLLOW_CHECK(all_fill(m->field, sizeof m->field), "bytes of " #field " were overwritten")

/* Every byte without write access is unchanged. */
void machine_check_memory(const struct machine *x)
{
    struct memory *m = x->w->m;
    CHECK_FILL(guard0);
    CHECK_FILL(guard1);
    CHECK_FILL(read_only);
    CHECK_FILL(guard2);
    CHECK_FILL(other_tag);
    CHECK_FILL(guard3);
    CHECK_FILL(stale);
    CHECK_FILL(guard4);
    CHECK_FILL(guard5);
    CHECK_FILL(guard6);
    /* A VI that may be written to was connected: its granted area may have any content, and is filled again. */
    if (!x->may_write)
        CHECK_FILL(granted);
    else
        memset(m->granted, FILL, sizeof m->granted);
    for (int i = 0; i < N_SLOTS; i++) {
        HOLLOW_CHECK(all_fill(m->recv[i].bytes, sizeof m->recv[i]), "bytes of receive buffer %d that was not posted",
                     i);
        HOLLOW_CHECK(all_fill(m->recv_desc[i].guard, 32) && all_fill(m->send_desc[i].guard, 32), "behind descriptor %d",
                     i);
    }
    if (!x->bystander_hit)
        CHECK_FILL(bystander_bytes);
}
