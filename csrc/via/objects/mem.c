/*
 * Protection tags and registered memory.
 *
 *    handle   31             16 15              0
 *            +-----------------+-----------------+
 *            | generation      | index           |     drawn at random with each registration; into nic->regions
 *            +-----------------+-----------------+
 *
 * A region is a range of the process's memory with a tag and rights. via_mem_grants() checks every access of the NIC to
 * memory, including the program's own descriptors. The handle must be the one in the table, the range must lie inside
 * the region, and the tags of VI and region must match. RDMA also needs the right. The generation makes handles hard to
 * guess and old ones invalid.
 *
 * Tags match if they are equal or if one of them is NULL. Early VIA programs left the tag of their VIs, of their memory
 * or of both at NULL. A region with a non-NULL tag is closed to VIs with another non-NULL tag. A region with the NULL
 * tag is open to all VIs of its NIC, within its rights. A VI with the NULL tag may use all regions of its NIC.
 *
 * If the link has memory that peers on the same host can map, a copy of the table is published there. A peer that
 * writes or reads directly (link operations place and take) first increments `users` and then reads `handle`. This side
 * first clears the handle and then waits until `users` is 0. Both sides have a full barrier between their store and
 * their load, so at least one of them sees the other (Dekker's algorithm). Either the peer finds no handle, or this
 * side waits for it. After one second the peer counts as killed or stopped in its copy. It may resume and decrement
 * `users`, so the entry is never published again, and its index is not used for another region.
 *
 * Registration pins memory (mlock) as far as RLIMIT_MEMLOCK allows. Unpinned memory also works, because no hardware
 * reads it. Pin failures are counted, and viakit_query_nic reports the number of bytes pinned.
 *
 * The states of a table entry:
 *
 *     never used --register--> granted --deregister--> free list --register--> granted ...
 *                              handle != 0             handle 0, next_free     (another generation)
 *
 * region_epoch is incremented whenever a grant may be withdrawn. An access that was granted when a descriptor was
 * posted is still granted while region_epoch is unchanged. The short paths of tx.c and rx.c compare this number instead
 * of checking again.
 *
 * All functions run as the NIC's owner, except the Vip and viakit calls, which enter the NIC. The list of pinned ranges
 * belongs to the process and has a mutex.
 */
#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "base/atomic.h"
#include "base/clock.h"
#include "base/explain.h"
#include "base/plural.h"
#include "base/pool.h"
#include "base/thread.h"
#include "base/virtual.h"
#include "via/connect/conn.h"
#include "via/data/data.h"
#include "via/enter.h"
#include "via/error.h"
#include "via/limits.h"
#include "via/mem.h"
#include "via/nic.h"

struct vk_pool via_ptag_pool = VK_POOL_INIT(struct via_ptag, 65536, number);
uint32_t via_n_regions_live, via_n_allocations_live;

/* Memory from viakit_alloc, so that VipCloseNic can free what the program did not. */
struct via_allocation {
    struct via_allocation *next;
    void *address;
    size_t len;
};

/* The pinned page ranges of the whole process, because mlock does not nest and regions of several NICs may share pages.
 * There is one entry per pinned region, in no order. */
struct pin_range {
    uintptr_t from, to;
};
static pthread_mutex_t pin_mutex = PTHREAD_MUTEX_INITIALIZER;
static struct pin_range *pins;
static size_t n_pins, pins_capacity;

/* A child of fork inherits no pinned page. */
VK_LOCK_AT_FORK(&pin_mutex, n_pins = 0)

/* The table reserves address space for all regions that a NIC may have; pages are allocated on use. Its entries are
 * zero: handle 0 means free. */
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

/* Return a generation that is not guessable and that the last few registrations of this index did not use. */
static uint32_t new_generation(struct via_region *r)
{
    const uint32_t n = sizeof r->past / sizeof *r->past;
    uint32_t g, i;
    do {
        g = conn_random() >> 16;
        for (i = 0; i < n && r->past[i] != g; i++) {}
    } while (g == 0 || i < n);
    /* the newest first; the oldest is dropped */
    memmove(r->past + 1, r->past, sizeof r->past - sizeof *r->past);
    return r->past[0] = g;
}

/* Publish the region to peers. The handle is written last, because a peer that sees it may use the rest. release: pairs
 * with the acquire in granted() (link/shm_copy.c). */
static void publish(struct via_nic *nic, const struct via_region *r)
{
    if (nic->published == NULL || r->abandoned)
        return;
    struct via_region *p = &nic->published[r - nic->regions];
    p->address = r->address;
    p->len = r->len;
    p->ptag = r->ptag;
    p->rights = r->rights;
    vk_store_release(&p->handle, r->handle);
}

/* Return the whole pages that the range touches, as [*from, *to): mlock works on pages. */
static void pages_of(uint64_t address, uint64_t len, uintptr_t *from, uintptr_t *to)
{
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
    *from = (uintptr_t)address & ~(page - 1);
    *to = ((uintptr_t)(address + len) + page - 1) & ~(page - 1);
}

/* Return whether all pages are mapped: mincore fails with ENOMEM on unmapped pages. It runs on 256 pages at a time; the
 * residency that it returns is not used. */
static int is_mapped(uintptr_t from, uintptr_t to)
{
    unsigned char seen[256];
    uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), step = page * sizeof seen;
    for (; from < to; from += step)
        if (mincore((void *)from, to - from < step ? to - from : step, seen) != 0 && errno == ENOMEM)
            return 0;
    return 1;
}

/* Pin the region; return 1 if its pages are pinned now. Failure is no error. Each region records its own range, even if
 * another region has pinned it already. The mutex is held during mlock(), which may read pages from disk: another NIC's
 * unpin() must not come between mlock() and the entry. */
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

/* Unpin the region. mlock does not count: one munlock undoes all. Pages are therefore unlocked only if no other
 * region's range touches them. */
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
        /* remove one entry only: another region may have pinned the same range */
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
        munlock((void *)from, to - from); /* fails harmlessly if the memory was unmapped in the meantime */
    pthread_mutex_unlock(&pin_mutex);
}

/* Return the live tag of that handle if it belongs to this NIC, or NULL. */
static struct via_ptag *find_ptag(struct via_nic *nic, VIP_PROTECTION_HANDLE handle)
{
    struct via_ptag *t = vk_pool_find(&via_ptag_pool, handle);
    return t && t->nic == nic ? t : NULL;
}

/* Return the number by which tags of VIs and regions are compared. The NULL tag is valid and has the number 0, which
 * matches any. */
uint32_t via_ptag_number(struct via_nic *nic, VIP_PROTECTION_HANDLE handle, int *valid)
{
    struct via_ptag *t = handle ? find_ptag(nic, handle) : NULL;
    *valid = handle == NULL || t;
    return t ? t->number : 0;
}

/* Add (by 1) or remove (by -1) one user; unsigned arithmetic wraps to the same result. */
static void ptag_use(struct via_nic *nic, uint32_t number, int by)
{
    if (number)
        nic->ptags[number]->n_users += (uint32_t)by;
}

/* The tag gets the lowest free number. Numbers are reused, handles are not. */
VIP_RETURN VipCreatePtag(VIP_NIC_HANDLE handle, VIP_PROTECTION_HANDLE *out)
{
    if (out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipCreatePtag: no place for the tag (NULL)");
    VIA_ENTER_NIC(nic, handle);
    uint32_t number = 1;
    while (number < VIA_MAX_PTAGS && nic->ptags[number])
        number++;
    int full = number == VIA_MAX_PTAGS;
    struct via_ptag *t = full ? NULL : vk_pool_get(&via_ptag_pool);
    if (t == NULL) {
        via_leave(nic);
        if (full)
            return vk_fail(VIP_ERROR_RESOURCE, "a NIC has at most %d protection tags: destroy one first",
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

/* Destroy a tag. It is refused while VIs or regions use it, because another tag may soon have its number. */
VIP_RETURN VipDestroyPtag(VIP_NIC_HANDLE handle, VIP_PROTECTION_HANDLE tag)
{
    VIP_RETURN code = VIP_SUCCESS;
    VIA_ENTER_NIC(nic, handle);
    struct via_ptag *t = find_ptag(nic, tag);
    if (t == NULL)
        code = via_bad_handle("protection tag", tag);
    else if (t->n_users)
        code = vk_fail(VIP_ERROR_RESOURCE,
                       "protection tag is used by %u VIs and regions: destroy or deregister them first", t->n_users);
    else {
        nic->ptags[t->number] = NULL;
        nic->n_ptags--;
        vk_pool_put(&via_ptag_pool, t);
    }
    via_leave(nic);
    return code;
}

/* Without attributes a region grants no RDMA rights, as a program that does not use RDMA expects. */
static uint32_t rights_of(const VIP_MEM_ATTRIBUTES *a)
{
    return a ? (a->EnableRdmaWrite ? VIA_RIGHT_WRITE : 0u) | (a->EnableRdmaRead ? VIA_RIGHT_READ : 0u) : 0u;
}

/* Return a free entry of the table: from the free list, or the next one that was never used. NULL if all are in use. */
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

/* Check a range before the NIC is entered, because this takes a system call per mebibyte. If the program unmaps a page
 * afterwards, that is its own error: no pointer is followed here unless the program requests it. */
static VIP_RETURN check_range(VIP_PVOID address, VIP_ULONG len)
{
    uintptr_t from, to;
    if (address == NULL || len == 0)
        return vk_fail(VIP_INVALID_PARAMETER, "VipRegisterMem: %lu byte%s at %p: give an address and at least one byte",
                       len, vk_s(len), address);
    if ((uintptr_t)address + len < (uintptr_t)address)
        return vk_fail(VIP_INVALID_PARAMETER, "VipRegisterMem: %lu byte%s at %p reach past the end of memory", len,
                       vk_s(len), address);
    pages_of((uint64_t)(uintptr_t)address, len, &from, &to);
    if (!is_mapped(from, to))
        return vk_fail(VIP_INVALID_PARAMETER,
                       "VipRegisterMem: not all of the %lu byte%s at %p is memory of this process", len, vk_s(len),
                       address);
    return VIP_SUCCESS;
}

/* Register memory. The same memory may be registered many times with different rights; each registration has its own
 * handle. The length is in bytes; neither address nor length need be page-aligned. */
VIP_RETURN VipRegisterMem(VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_ULONG len, VIP_MEM_ATTRIBUTES *attributes,
                          VIP_MEM_HANDLE *out)
{
    if (out == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipRegisterMem: no place for the memory handle (NULL)");
    VIP_RETURN code = check_range(address, len);
    if (code)
        return code;
    VIA_ENTER_NIC(nic, handle);
    int valid;
    uint32_t ptag = via_ptag_number(nic, attributes ? attributes->Ptag : NULL, &valid);
    struct via_region *r = NULL;
    if (!valid)
        code = vk_fail(VIP_INVALID_PTAG, "VipRegisterMem: %p is not a protection tag of this NIC", attributes->Ptag);
    else if ((r = new_region(nic)) == NULL)
        code = vk_fail(VIP_ERROR_RESOURCE, "a NIC has at most %d regions: deregister one first", VIA_MAX_REGIONS - 1);
    if (r) {
        uint32_t index = (uint32_t)(r - nic->regions);
        /* The handle is still 0: the entry cannot be found while it is filled in. */
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
        /* The handle is set last: from now on the region can be found. It is never 0, because generation and index are
         * both not 0. */
        *out = r->handle = new_generation(r) << 16 | index;
        publish(nic, r);
        vk_charge(VK_CHARGE_REGISTER, len);
    }
    via_leave(nic);
    return code;
}

/* Make the region unreachable by its handle, and wait for peers that are writing into it or reading from it. The wait
 * takes as long as a memcpy. Return 0 if a peer has not finished after one second. A card that has registered the
 * region ends its access, after it has finished this NIC's own operations. */
static int hide_region(struct via_nic *nic, struct via_region *r)
{
    /* grants by this region must be checked again */
    nic->region_epoch++;
    r->handle = 0;
    if (r->memory) {
        nic->ops->card->drop_memory(nic->link, r->memory);
        r->memory = NULL;
    }
    if (nic->published == NULL || r->abandoned)
        return !r->abandoned;
    struct via_region *p = &nic->published[r - nic->regions];
    vk_store_release(&p->handle, 0);
    vk_fence_full(); /* orders the store of handle before the load of users */
    uint64_t give_up = 0;
    while (vk_load_acquire(&p->users)) {
        uint64_t now = vk_now();
        if (give_up == 0)
            give_up = now + VK_SECOND;
        if (now > give_up) {
            r->abandoned = 1;
            return 0;
        }
        sched_yield();
    }
    return 1;
}

/* Remove a region from the table and the counts, unpin it, and release its tag. Its index goes to the free list, unless
 * a peer is still counted in its entry. The memory itself belongs to the program. */
static void drop_region(struct via_nic *nic, struct via_region *r)
{
    int finished = hide_region(nic, r);
    nic->bytes_registered -= r->len;
    if (r->pinned)
        nic->bytes_pinned -= r->len;
    unpin(r);
    ptag_use(nic, r->ptag, -1);
    if (finished) {
        r->next_free = nic->region_free;
        nic->region_free = (uint32_t)(r - nic->regions);
    }
    nic->n_regions--;
    __atomic_sub_fetch(&via_n_regions_live, 1, __ATOMIC_RELAXED);
}

/* Enter the NIC and find the region behind (address, handle). exact: only the address at which it was registered, as
 * VipDeregisterMem requires; otherwise any address inside. On failure the NIC has been left. */
static VIP_RETURN enter_region(const char *function, VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_MEM_HANDLE mem,
                               int exact, struct via_nic **nic, struct via_region **region)
{
    VIP_RETURN code;
    *region = NULL;
    *nic = via_nic_enter(handle, &code);
    if (*nic == NULL)
        return code;
    uint32_t index = mem & 0xFFFF;
    if (mem != 0 && index < VIA_MAX_REGIONS && (*nic)->regions[index].handle == mem) {
        *region = &(*nic)->regions[index];
        uint64_t offset = (uint64_t)(uintptr_t)address - (*region)->address;
        if (exact ? offset == 0 : offset < (*region)->len)
            return VIP_SUCCESS;
    }
    via_leave(*nic);
    return vk_fail(VIP_INVALID_PARAMETER, "%s: %p with handle 0x%08x is not a registered region of this NIC%s",
                   function, address, mem, exact ? ": give the address it was registered with" : "");
}

/* Deregister memory. After the return neither the NIC nor a peer reads or writes the memory, not even a peer that had
 * begun, unless it was abandoned (hide_region): the program may free it. */
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

/* Any address inside the region is accepted. */
VIP_RETURN VipQueryMem(VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_MEM_HANDLE mem, VIP_MEM_ATTRIBUTES *attributes)
{
    struct via_nic *nic;
    struct via_region *r;
    if (attributes == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipQueryMem: no place for the attributes (NULL)");
    VIP_RETURN code = enter_region("VipQueryMem", handle, address, mem, 0, &nic, &r);
    if (code)
        return code;
    attributes->Ptag = r->ptag ? vk_pool_handle(nic->ptags[r->ptag]) : NULL;
    attributes->EnableRdmaWrite = (r->rights & VIA_RIGHT_WRITE) != 0;
    attributes->EnableRdmaRead = (r->rights & VIA_RIGHT_READ) != 0;
    via_leave(nic);
    return VIP_SUCCESS;
}

/* Change tag and rights. The handle does not change, but it is withdrawn for a moment, in which the old rights grant
 * nothing. */
VIP_RETURN VipSetMemAttributes(VIP_NIC_HANDLE handle, VIP_PVOID address, VIP_MEM_HANDLE mem,
                               VIP_MEM_ATTRIBUTES *attributes)
{
    struct via_nic *nic;
    struct via_region *r;
    if (attributes == NULL)
        return vk_fail(VIP_INVALID_PARAMETER, "VipSetMemAttributes: no attributes (NULL)");
    VIP_RETURN code = enter_region("VipSetMemAttributes", handle, address, mem, 0, &nic, &r);
    if (code)
        return code;
    int valid;
    uint32_t ptag = via_ptag_number(nic, attributes->Ptag, &valid);
    if (!valid)
        code =
            vk_fail(VIP_INVALID_PTAG, "VipSetMemAttributes: %p is not a protection tag of this NIC", attributes->Ptag);
    else {
        ptag_use(nic, r->ptag, -1);
        ptag_use(nic, ptag, 1);
        /* Peers with the old rights have finished when hide_region() returns. Meanwhile other peers find no handle and
         * send frames, which are checked against the new attributes. */
        hide_region(nic, r);
        r->ptag = ptag;
        r->rights = rights_of(attributes);
        r->handle = mem;
        publish(nic, r);
    }
    via_leave(nic);
    return code;
}

/* Free an allocation. *p is the pointer to it in the list, and points to the next one afterwards. The link's `free`
 * takes memory that its `alloc` made: a link has both or neither. */
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

/* The last step of closing a NIC: VIs and their descriptors are gone, so no region is in use. Regions go before
 * allocations, because until then peers may be copying from them. */
void via_mem_fini(struct via_nic *nic)
{
    via_reorder_fini(nic);
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

/* Allocate zeroed memory. On shm it comes from the arena that peers map, so that they copy from it without the kernel's
 * help. On other links it is whole pages of ordinary memory. It is not registered yet. */
VIP_RETURN viakit_alloc(VIP_NIC_HANDLE handle, size_t len, void **address)
{
    VIP_RETURN code = VIP_SUCCESS;
    if (address == NULL || len == 0 || len > SIZE_MAX / 2)
        return vk_fail(VIP_INVALID_PARAMETER,
                       "viakit_alloc: %zu byte%s: give at least one, and a place for the address", len, vk_s(len));
    struct via_allocation *a = malloc(sizeof *a);
    if (a == NULL)
        return via_no_memory("viakit_alloc");
    struct via_nic *nic = via_nic_enter(handle, &code);
    if (nic == NULL) {
        free(a);
        return code;
    }
    /* posix_memalign returns a positive error number, links a negative one. */
    int error = nic->ops->alloc ? nic->ops->alloc(nic->link, len, address) : posix_memalign(address, 4096, len);
    if (error == 0) {
        if (nic->ops->alloc == NULL)
            memset(*address, 0, len);
        *a = (struct via_allocation){nic->allocations, *address, len};
        nic->allocations = a;
        __atomic_add_fetch(&via_n_allocations_live, 1, __ATOMIC_RELAXED);
    } else {
        free(a);
        code = vk_fail(VIP_ERROR_RESOURCE, "viakit_alloc: no room for %zu byte%s: %s", len, vk_s(len),
                       strerror(abs(error)));
    }
    via_leave(nic);
    return code;
}

/* Return a region that overlaps the allocation, or NULL. */
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

/* Free memory from viakit_alloc. It is refused while any part is registered: a peer could write to memory that has been
 * allocated again. */
VIP_RETURN viakit_free(VIP_NIC_HANDLE handle, void *address)
{
    VIP_RETURN code = VIP_SUCCESS;
    VIA_ENTER_NIC(nic, handle);
    struct via_allocation **p = &nic->allocations;
    while (*p && (*p)->address != address)
        p = &(*p)->next;
    if (*p == NULL)
        code = vk_fail(VIP_INVALID_PARAMETER, "viakit_free: %p did not come from viakit_alloc of this NIC", address);
    else if (registered_part(nic, *p))
        code = vk_fail(VIP_ERROR_RESOURCE, "viakit_free: %p is still registered, at least in part: deregister it first",
                       address);
    else
        drop_allocation(nic, p);
    via_leave(nic);
    return code;
}
