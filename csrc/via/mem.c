/*
 * Protection tags and registered memory.
 *
 *    handle   31             16 15              0
 *            +-----------------+-----------------+
 *            | generation      | index           |     drawn at random with each registration; into nic->regions
 *            +-----------------+-----------------+
 *
 * A region is a range of the process's memory with a tag and rights. Every access of the NIC to memory, the program's
 * own descriptors included, asks via_mem_grants(): the handle must be the one in the table, the range inside, the tag
 * that of the VI; for RDMA the right, too. The generation makes handles hard to guess and old ones useless.
 *
 * Where the link has memory that peers of the same host can see, a copy of the table is published there. A peer that
 * writes or reads directly (link operations place and take) announces itself in `users` first and then looks at
 * `handle`; we take the handle away first and then wait for `users` to be 0. Both sides have a full barrier between
 * their store and their load, so one of the two always sees the other (Dekker's way): either the peer finds no handle,
 * or we wait for it.
 *
 * Registration pins (mlock) as far as RLIMIT_MEMLOCK allows. What it does not allow still works, for nothing here is
 * read by hardware; it is counted, and viakit_query_nic tells how much is pinned.
 *
 * The life of an entry of the table:
 *
 *     never used --register--> granted --deregister--> free list --register--> granted ...
 *                              handle != 0             handle 0, next_free     (another generation)
 *
 * region_epoch counts the moments at which something that was granted may be so no longer. What was found granted
 * when a descriptor was posted is still granted as long as it has not moved: the short ways of tx.c and rx.c compare
 * one number instead of asking again.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "../base/plural.h"
#include "conn.h"

struct vk_pool via_ptag_pool = VK_POOL_INIT(struct via_ptag, 65536, number);
uint32_t via_n_regions_live, via_n_allocations_live;

/* Memory from viakit_alloc, so that VipCloseNic can give back what the program did not. */
struct via_allocation {
    struct via_allocation *next;
    void *address;
    size_t len;
};

/* Pinned page ranges of the whole process, for mlock does not nest and regions of several NICs may share pages.
 * One entry per region that was pinned, in no order. */
struct pin_range {
    uintptr_t from, to;
};
static pthread_mutex_t pin_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pin_range *pins;
static size_t n_pins, pins_capacity;

/* A child of fork inherits no pinned page; nor may it find the mutex held by a thread that it does not have. */
static void before_fork(void)
{
    pthread_mutex_lock(&pin_mutex);
}

static void parent_of_fork(void)
{
    pthread_mutex_unlock(&pin_mutex);
}

static void child_of_fork(void)
{
    n_pins = 0;
    pthread_mutex_unlock(&pin_mutex);
}

__attribute__((constructor)) static void begin(void)
{
    pthread_atfork(before_fork, parent_of_fork, child_of_fork);
}

/* The table is address space for all regions a NIC may have; pages come with use. Its entries are zero: handle 0, so
 * free. */
int via_mem_init(struct via_nic *nic)
{
    size_t len = sizeof(struct via_region) * VIA_MAX_REGIONS;
    void *table = mmap(NULL, len, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (table == MAP_FAILED)
        return -ENOMEM;
    nic->regions = table;
    nic->region_touched = 1; /* index 0 stays unused: no handle is 0 */
    nic->published = nic->ops->region_table ? nic->ops->region_table(nic->link, len) : NULL;
    return 0;
}

/* A generation that nobody can guess and that none of the last few registrations of this index had. */
static uint32_t new_generation(struct via_region *r)
{
    const uint32_t n = sizeof r->past / sizeof *r->past;
    uint32_t g, i;
    do {
        g = conn_random() >> 16;
        for (i = 0; i < n && r->past[i] != g; i++) {}
    } while (g == 0 || i < n);
    /* The newest first, the oldest falls off. */
    memmove(r->past + 1, r->past, sizeof r->past - sizeof *r->past);
    return r->past[0] = g;
}

/* Shows the region to peers: the handle last, for who sees it may go by the rest. release: pairs with the acquire in
 * granted() (link/shm.c). */
static void publish(struct via_nic *nic, const struct via_region *r)
{
    if (nic->published == NULL)
        return;
    struct via_region *p = &nic->published[r - nic->regions];
    p->address = r->address;
    p->len = r->len;
    p->ptag = r->ptag;
    p->rights = r->rights;
    vk_store_release(&p->handle, r->handle);
}

/* [*from, *to) are the whole pages that the range touches: what mlock works on. */
static void pages_of(uint64_t address, uint64_t len, uintptr_t *from, uintptr_t *to)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    *from = (uintptr_t)address & ~(page - 1);
    *to = ((uintptr_t)(address + len) + page - 1) & ~(page - 1);
}

/* Is there memory at all? mincore fails with ENOMEM on unmapped pages. Asked 256 pages at a time; the answer about
 * residency is of no interest. */
static int is_mapped(uintptr_t from, uintptr_t to)
{
    unsigned char seen[256];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), step = page * sizeof seen;
    for (; from < to; from += step)
        if (mincore((void *)from, to - from < step ? to - from : step, seen) != 0 && errno == ENOMEM)
            return 0;
    return 1;
}

/* 1 if the pages are pinned now. Failure is no error. Each region notes its own range, also one that others have pinned
 * already. */
static int pin(struct via_region *r)
{
    uintptr_t from, to;
    pages_of(r->address, r->len, &from, &to);
    pthread_mutex_lock(&pin_mutex);
    if (n_pins == pins_capacity) {
        size_t more = pins_capacity ? 2 * pins_capacity : 64;
        struct pin_range *bigger = realloc(pins, more * sizeof *pins);
        if (bigger) {
            pins = bigger;
            pins_capacity = more;
        }
    }
    r->pinned = n_pins < pins_capacity && mlock((void *)from, to - from) == 0;
    if (r->pinned)
        pins[n_pins++] = (struct pin_range){from, to};
    pthread_mutex_unlock(&pin_mutex);
    return (int)r->pinned;
}

/* mlock does not count: one munlock undoes them all. So pages are unlocked only if no other region's range touches
 * them. */
static void unpin(struct via_region *r)
{
    uintptr_t from, to;
    int shared = 0, removed = 0;
    if (!r->pinned)
        return;
    pages_of(r->address, r->len, &from, &to);
    pthread_mutex_lock(&pin_mutex);
    r->pinned = 0;
    for (size_t i = 0; i < n_pins;) {
        /* One entry only: the same range may have been pinned by another region as well. */
        if (!removed && pins[i].from == from && pins[i].to == to) {
            pins[i] = pins[--n_pins];
            removed = 1;
            continue;
        }
        shared |= pins[i].from < to && from < pins[i].to;
        i++;
    }
    if (n_pins == 0) {
        free(pins);
        pins = NULL;
        pins_capacity = 0;
    }
    if (!shared)
        munlock((void *)from, to - from); /* memory that was unmapped meanwhile: nothing is left to unlock */
    pthread_mutex_unlock(&pin_mutex);
}

/* The living tag of that handle, if it is this NIC's. */
static struct via_ptag *find_ptag(struct via_nic *nic, VIP_PROTECTION_HANDLE handle)
{
    struct via_ptag *t = vk_pool_find(&via_ptag_pool, handle);
    return t && t->nic == nic ? t : NULL;
}

/* The number that VIs and regions are compared by; 0, and that is valid, for no tag at all. */
uint32_t via_ptag_number(struct via_nic *nic, VIP_PROTECTION_HANDLE handle, int *valid)
{
    *valid = 1;
    if (handle == NULL) /* programs of the time passed no tag at all */
        return 0;
    struct via_ptag *t = find_ptag(nic, handle);
    if (t == NULL)
        *valid = 0;
    return t ? t->number : 0;
}

/* One user more (by 1) or less (by -1); unsigned arithmetic wraps to the same. */
static void ptag_use(struct via_nic *nic, uint32_t number, int by)
{
    if (number)
        nic->ptags[number]->n_users += (uint32_t)by;
}

/* The least number that is free: numbers come again, handles do not. */
VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE handle, VIP_PROTECTION_HANDLE *out)
{
    VIP_RETURN code;
    if (out == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipCreatePtag: no place for the tag (NULL)");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    uint32_t number = 1;
    while (number < VIA_MAX_PTAGS && nic->ptags[number])
        number++;
    int full = number == VIA_MAX_PTAGS;
    struct via_ptag *t = full ? NULL : vk_pool_get(&via_ptag_pool);
    if (t == NULL) {
        via_leave(nic);
        if (full)
            return via_fail(VIP_ERROR_RESOURCE, "a NIC has at most %d protection tags: destroy one first",
                            VIA_MAX_PTAGS - 1);
        return via_no_object("VipCreatePtag", &via_ptag_pool, "protection tags");
    }
    t->nic = nic;
    t->number = number;
    nic->ptags[number] = t;
    nic->n_ptags++;
    *out = vk_pool_handle(t);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Refused while VIs or regions have it: its number would soon be another tag's. */
VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE handle, VIP_PROTECTION_HANDLE tag)
{
    VIP_RETURN code = VIP_SUCCESS;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    struct via_ptag *t = find_ptag(nic, tag);
    if (t == NULL)
        code = via_bad_handle("protection tag", tag);
    else if (t->n_users)
        code = via_fail(VIP_ERROR_RESOURCE,
                        "protection tag is used by %u VIs and regions: destroy or deregister them first", t->n_users);
    else {
        nic->ptags[t->number] = NULL;
        nic->n_ptags--;
        vk_pool_put(&via_ptag_pool, t);
    }
    via_leave(nic);
    return code;
}

/* No attributes: no rights for anybody else, as for a program that knows nothing of RDMA. */
static uint32_t rights_of(const VIP_MEM_ATTRIBUTES *a)
{
    return a ? (a->EnableRdmaWrite ? VIA_RIGHT_WRITE : 0u) | (a->EnableRdmaRead ? VIA_RIGHT_READ : 0u) : 0u;
}

/* A free entry of the table, from the list of those that were used, or the next that never was; NULL when all are
 * taken. */
static struct via_region *new_region(struct via_nic *nic)
{
    uint32_t index = nic->region_free;
    if (index)
        nic->region_free = nic->regions[index].next_free;
    else if (nic->region_touched < VIA_MAX_REGIONS) {
        index = nic->region_touched;
        vk_store_relaxed(&nic->region_touched, index + 1);
    } else
        return NULL;
    return &nic->regions[index];
}

/* Asked before the NIC is entered, for it takes a system call per mebibyte. A page that is unmapped right after is
 * the program's affair: nothing here follows a pointer without being told to. */
static VIP_RETURN check_range(VIP_PVOID address, VIP_ULONG len)
{
    uintptr_t from, to;
    if (address == NULL || len == 0)
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipRegisterMem: %lu byte%s at %p: give an address and at least one byte", len, vk_s(len),
                        address);
    if ((uintptr_t)address + len < (uintptr_t)address)
        return via_fail(VIP_INVALID_PARAMETER, "VipRegisterMem: %lu byte%s at %p reach past the end of memory", len,
                        vk_s(len), address);
    pages_of((uint64_t)(uintptr_t)address, len, &from, &to);
    if (!is_mapped(from, to))
        return via_fail(VIP_INVALID_PARAMETER,
                        "VipRegisterMem: not all of the %lu byte%s at %p is memory of this process", len, vk_s(len),
                        address);
    return VIP_SUCCESS;
}

/* The same memory may be registered many times, with different rights: each registration has its own handle. Length is
 * in bytes; neither address nor length need be a page's. */
VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_ULONG len, VIP_MEM_ATTRIBUTES *attributes,
                          VIP_MEM_HANDLE *out)
{
    if (out == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipRegisterMem: no place for the memory handle (NULL)");
    VIP_RETURN code = check_range(address, len);
    if (code)
        return code;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    int valid;
    uint32_t ptag = via_ptag_number(nic, attributes ? attributes->Ptag : NULL, &valid);
    struct via_region *r = NULL;
    if (!valid)
        code = via_fail(VIP_INVALID_PTAG, "VipRegisterMem: %p is not a protection tag of this NIC", attributes->Ptag);
    else if ((r = new_region(nic)) == NULL)
        code = via_fail(VIP_ERROR_RESOURCE, "a NIC has at most %d regions: deregister one first", VIA_MAX_REGIONS - 1);
    if (r) {
        uint32_t index = (uint32_t)(r - nic->regions);
        /* The handle is still 0: nobody finds the entry while it is filled in. */
        r->address = (uint64_t)(uintptr_t)address;
        r->len = len;
        r->ptag = ptag;
        r->rights = rights_of(attributes);
        if (!pin(r))
            NIC_COUNT(nic, pin_failures, 1);
        else
            nic->bytes_pinned += len;
        nic->bytes_registered += len;
        nic->n_regions++;
        __atomic_add_fetch(&via_n_regions_live, 1, __ATOMIC_RELAXED);
        ptag_use(nic, ptag, 1);
        /* The handle last: from now on the region can be found. 0 is never one, for generation and index are both not
         * 0. */
        *out = r->handle = new_generation(r) << 16 | index;
        publish(nic, r);
    }
    via_leave(nic);
    return code;
}

/* By handle and address. exact: the address it was registered with, as VipDeregisterMem wants; else any inside. */
static struct via_region *find_region(struct via_nic *nic, const void *address, VIP_MEM_HANDLE handle, int exact)
{
    uint32_t index = handle & 0xFFFF;
    if (handle == 0 || index >= VIA_MAX_REGIONS || nic->regions[index].handle != handle)
        return NULL;
    struct via_region *r = &nic->regions[index];
    uint64_t offset = (uint64_t)(uintptr_t)address - r->address;
    return (exact ? offset == 0 : offset < r->len) ? r : NULL;
}

/* Nobody reaches the region by its handle any more, and peers that write into it or read from it at this moment are
 * waited for: a memcpy's time, or until it is clear that they died in the middle. */
static void hide_region(struct via_nic *nic, struct via_region *r)
{
    /* What was granted by this region must be asked for again. */
    nic->region_epoch++;
    r->handle = 0;
    if (nic->published == NULL)
        return;
    struct via_region *p = &nic->published[r - nic->regions];
    vk_store_release(&p->handle, 0);
    vk_fence_full(); /* handle is gone before users is looked at */
    /* A peer that was killed between announcing itself and taking that back would keep us for ever: after a second
     * it is thought dead. */
    uint64_t give_up = 0;
    while (vk_load_acquire(&p->users)) {
        uint64_t now = vk_now();
        if (give_up == 0)
            give_up = now + VK_SECOND;
        if (now > give_up) {
            vk_store_release(&p->users, 0);
            break;
        }
        sched_yield();
    }
}

/* Out of the table and its counts, unpinned, the tag one user less, the index on the free list. The memory itself is
 * the program's. */
static void drop_region(struct via_nic *nic, struct via_region *r)
{
    hide_region(nic, r);
    nic->bytes_registered -= r->len;
    if (r->pinned)
        nic->bytes_pinned -= r->len;
    unpin(r);
    ptag_use(nic, r->ptag, -1);
    r->next_free = nic->region_free;
    nic->region_free = (uint32_t)(r - nic->regions);
    nic->n_regions--;
    __atomic_sub_fetch(&via_n_regions_live, 1, __ATOMIC_RELAXED);
}

/* The region behind (address, handle) of a call, entered; or the failure, left. */
static VIP_RETURN enter_region(const char *function, VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_MEM_HANDLE mem,
                               int exact, struct via_nic **nic, struct via_region **region)
{
    VIP_RETURN code;
    *nic = via_nic_enter(handle, &code);
    if (*nic == NULL)
        return code;
    *region = find_region(*nic, address, mem, exact);
    if (*region)
        return VIP_SUCCESS;
    via_leave(*nic);
    return via_fail(VIP_INVALID_PARAMETER, "%s: %p with handle 0x%08x is not a registered region of this NIC%s",
                    function, address, mem, exact ? ": give the address it was registered with" : "");
}

/* When it returns nobody reads or writes the memory any more, not even a peer that had begun: the program may give it
 * away. */
VIP_RETURN VipDeregisterMem(VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_MEM_HANDLE mem)
{
    struct via_nic *nic;
    struct via_region *r;
    VIP_RETURN code = enter_region("VipDeregisterMem", handle, address, mem, 1, &nic, &r);
    if (code)
        return code;
    drop_region(nic, r);
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Any address inside the region will do. */
VIP_RETURN VipQueryMem(VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_MEM_HANDLE mem, VIP_MEM_ATTRIBUTES *attributes)
{
    struct via_nic *nic;
    struct via_region *r;
    if (attributes == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipQueryMem: no place for the attributes (NULL)");
    VIP_RETURN code = enter_region("VipQueryMem", handle, address, mem, 0, &nic, &r);
    if (code)
        return code;
    attributes->Ptag = r->ptag ? vk_pool_handle(nic->ptags[r->ptag]) : NULL;
    attributes->EnableRdmaWrite = (r->rights & VIA_RIGHT_WRITE) != 0;
    attributes->EnableRdmaRead = (r->rights & VIA_RIGHT_READ) != 0;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* The handle stays the same; it is gone for a moment, in which nobody is granted anything by the old rights. */
VIP_RETURN VipSetMemAttributes(VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_MEM_HANDLE mem,
                               VIP_MEM_ATTRIBUTES *attributes)
{
    struct via_nic *nic;
    struct via_region *r;
    if (attributes == NULL)
        return via_fail(VIP_INVALID_PARAMETER, "VipSetMemAttributes: no attributes (NULL)");
    VIP_RETURN code = enter_region("VipSetMemAttributes", handle, address, mem, 0, &nic, &r);
    if (code)
        return code;
    int valid;
    uint32_t ptag = via_ptag_number(nic, attributes->Ptag, &valid);
    if (!valid)
        code =
            via_fail(VIP_INVALID_PTAG, "VipSetMemAttributes: %p is not a protection tag of this NIC", attributes->Ptag);
    else {
        ptag_use(nic, r->ptag, -1);
        ptag_use(nic, ptag, 1);
        /* Whoever was granted more is done when we return; meanwhile peers find no handle and send frames, which are
         * judged after this. */
        hide_region(nic, r);
        r->ptag = ptag;
        r->rights = rights_of(attributes);
        r->handle = mem;
        publish(nic, r);
    }
    via_leave(nic);
    return code;
}

static void drop_allocation(struct via_nic *nic, struct via_allocation **p);

/* With the NIC's last act: VIs and their descriptors are gone, so no region is in use. Regions before allocations,
 * which peers may be copying from until then. */
void via_mem_fini(struct via_nic *nic)
{
    via_early_fini(nic);
    for (uint32_t i = 1; i < nic->region_touched; i++)
        if (nic->regions[i].handle)
            drop_region(nic, &nic->regions[i]);
    while (nic->allocations)
        drop_allocation(nic, &nic->allocations);
    for (uint32_t i = 1; i < VIA_MAX_PTAGS; i++)
        if (nic->ptags[i]) {
            vk_pool_put(&via_ptag_pool, nic->ptags[i]);
            nic->ptags[i] = NULL;
        }
    munmap(nic->regions, sizeof(struct via_region) * VIA_MAX_REGIONS);
}

/* ---------------------------------------------------------------- memory that peers can map (viakit.h) */

/* On shm from the arena that peers map, so that they copy from it without the kernel's help; elsewhere whole pages of
 * ordinary memory. Zeroed. It is not registered yet. */
VIP_RETURN viakit_alloc(VIP_NIC_HANDLE handle, size_t len, void **address)
{
    VIP_RETURN code = VIP_SUCCESS;
    if (address == NULL || len == 0 || len > SIZE_MAX / 2)
        return via_fail(VIP_INVALID_PARAMETER,
                        "viakit_alloc: %zu byte%s: give at least one, and a place for the address", len, vk_s(len));
    struct via_allocation *a = malloc(sizeof *a);
    if (a == NULL)
        return via_no_memory("viakit_alloc");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL) {
        free(a);
        return code;
    }
    /* posix_memalign says its error as a positive number, links as a negative one. */
    int error = nic->ops->alloc ? nic->ops->alloc(nic->link, len, address) : posix_memalign(address, 4096, len);
    if (error == 0) {
        if (nic->ops->alloc == NULL)
            memset(*address, 0, len);
        *a = (struct via_allocation){nic->allocations, *address, len};
        nic->allocations = a;
        __atomic_add_fetch(&via_n_allocations_live, 1, __ATOMIC_RELAXED);
    } else {
        free(a);
        code = via_fail(VIP_ERROR_RESOURCE, "viakit_alloc: no room for %zu byte%s: %s", len, vk_s(len),
                        strerror(abs(error)));
    }
    via_leave(nic);
    return code;
}

/* The region that lies, even in part, in the allocation; NULL if none does. */
static const struct via_region *registered_part(const struct via_nic *nic, const struct via_allocation *a)
{
    uint64_t from = (uint64_t)(uintptr_t)a->address, to = from + a->len;
    for (uint32_t i = 1; i < nic->region_touched; i++) {
        const struct via_region *r = &nic->regions[i];
        if (r->handle && r->address < to && from < r->address + r->len)
            return r;
    }
    return NULL;
}

static void drop_allocation(struct via_nic *nic, struct via_allocation **p)
{
    struct via_allocation *a = *p;
    *p = a->next;
    if (nic->ops->free == NULL)
        free(a->address);
    else
        nic->ops->free(nic->link, a->address);
    free(a);
    __atomic_sub_fetch(&via_n_allocations_live, 1, __ATOMIC_RELAXED);
}

/* Refused while any part of it is registered: a peer could write into what somebody else has by then. */
VIP_RETURN viakit_free(VIP_NIC_HANDLE handle, void *address)
{
    VIP_RETURN code = VIP_SUCCESS;
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL)
        return code;
    struct via_allocation **p = &nic->allocations;
    while (*p && (*p)->address != address)
        p = &(*p)->next;
    if (*p == NULL)
        code = via_fail(VIP_INVALID_PARAMETER, "viakit_free: %p did not come from viakit_alloc of this NIC", address);
    else if (registered_part(nic, *p))
        code = via_fail(VIP_ERROR_RESOURCE,
                        "viakit_free: %p is still registered, at least in part: deregister it first", address);
    else
        drop_allocation(nic, p);
    via_leave(nic);
    return code;
}
