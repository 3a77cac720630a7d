/*
 * Hellos: the first message of each rank to all others, through the launcher's exchange. From them every rank derives
 * by itself, with the same result: whether the ranks fit together, the ranks of one host, whether they have enough
 * cores, the thresholds (rendezvous.c), and the job's name.
 *
 * Called by the thread that opens the world.
 */
#include <fcntl.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include "msg/calibration.h"
#include "msg/engine.h"

/* "vkmsg007": the last digits are the protocol's version, to be raised with every change of packets, hellos or cards.
 */
#define MAGIC 0x766b6d7367303037ull

/* Cores counted in a hello. On a machine with more, core numbers are folded, so it counts as crowded a little too
 * soon. */
#define N_CORES 256

/* First message of a rank to all others. It has the same length on all ranks, as the exchange requires. It is sent
 * in host byte order, because only machines of one byte order can connect; byte_order lets the others check this. */
struct hello {
    uint64_t magic;
    uint64_t host;    /* hash of the host's name */
    uint64_t machine; /* hash of the boot id: hosts of a testbed are one machine, and share its cores */
    uint64_t policy;  /* hash of all fields on which both sides must agree */
    uint32_t byte_order;
    uint32_t rank, n_ranks, pid;
    uint8_t random[16];
    msg_calibration calibration[2]; /* rank 0's applies */
    uint64_t cores[N_CORES / 64];   /* a bit for each core that this rank may run on, counted modulo N_CORES */
};

/* FNV-1a, 64 bits: for comparison among cooperating ranks, not for security. It starts at HASH_BEGIN and can be
 * continued. */
static uint64_t hash_bytes(uint64_t h, const void *data, size_t len)
{
    const uint8_t *p = data;
    for (size_t i = 0; i < len; i++)
        h = (h ^ p[i]) * 1099511628211ull;
    return h;
}
#define HASH_BEGIN 1469598103934665603ull

/* The kernel makes a new boot id at each start. It is equal in all containers and namespaces of a machine. */
static uint64_t hash_machine(void)
{
    char boot[64] = "";
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t got = fd >= 0 ? read(fd, boot, sizeof boot) : 0;
    if (fd >= 0)
        close(fd);
    return hash_bytes(HASH_BEGIN, boot, got > 0 ? (size_t)got : 0);
}

/* Processes with the same boot id and network namespace can reach each other through shm. A launcher can override
 * this with a name. */
static uint64_t hash_host(const char *name)
{
    struct stat st = {0};
    if (name)
        return hash_bytes(HASH_BEGIN, name, strlen(name));
    if (stat("/proc/self/ns/net", &st) != 0)
        st.st_ino = 0;
    return hash_bytes(hash_machine(), &st.st_ino, sizeof st.st_ino);
}

/* Hashes values, field by field, so that padding and unused bytes of strings do not count. */
static uint64_t hash_policy(const msg_policy *p)
{
    msg_policy shared = *p; /* fields that each rank may choose for itself are left out */
    shared.spin_us = shared.yield_us = shared.progress = 0;
    shared.cache_bytes = shared.cache_entries = shared.unexpected_bytes = 0;
    uint64_t h = hash_bytes(HASH_BEGIN, shared.channel, strlen(shared.channel));
    for (int i = 0; msg_policy_field_name(i); i++) {
        int64_t value = msg_policy_get(&shared, i);
        h = hash_bytes(h, &value, sizeof value);
    }
    return h;
}

/* Every rank holds the same list and reaches the same result: compatibility of the ranks, ranks of one host,
 * thresholds, and the job's name (made by rank 0). Sets the world's hosts, cores, crowdedness, thresholds and name. */
static int compare_hellos(msg_world *w, const struct hello *all)
{
    int local = 0, sharing = 0, cores = 0;
    uint64_t usable[N_CORES / 64] = {0};
    for (int i = 0; i < w->n_ranks; i++) {
        const struct hello *h = &all[i], *own = &all[w->rank];
        /* The version comes first: if it differs, the layout of all other fields may differ, too. */
        if (h->magic != MAGIC || h->n_ranks != (uint32_t)w->n_ranks || h->rank != (uint32_t)i)
            return msg_fail(w, MSG_ERR_MISMATCH,
                            "rank %d was started as rank %u of %u: all must be given ranks 0 to n - 1, and "
                            "the same version of viakit",
                            i, h->rank, h->n_ranks);
        if (h->byte_order != own->byte_order)
            return msg_fail(w, MSG_ERR_MISMATCH, "rank %d has another byte order", i);
        if (h->policy != all[0].policy)
            return msg_fail(w, MSG_ERR_MISMATCH, "rank %d was started with another policy than rank 0", i);
        w->peers[i].host = h->host;
        local += h->host == own->host;
        if (h->machine != own->machine)
            continue;
        sharing++;
        for (int k = 0; k < N_CORES / 64; k++)
            usable[k] |= h->cores[k];
    }
    /* Crowded: this machine runs more ranks than it has cores, whatever host names they use. The cores of all ranks
     * count. A launcher that binds each rank to its own core therefore leaves enough for all. */
    for (int k = 0; k < N_CORES / 64; k++)
        cores += __builtin_popcountll(usable[k]);
    w->cores = cores ? cores : 1;
    w->crowded = sharing > w->cores;
    if (msg_on_machine()) {
        /* A described machine has a processor for each rank of a host, whatever this machine has. So no result depends
         * on the cores here. */
        w->cores = local;
        w->crowded = 0;
    }
    w->n_local = local;
    /* Rank 0's calibration applies to all ranks, because both ends of a connection need the same limits. */
    msg_choose_rendezvous(w, all[0].calibration);
    /* Rank 0's random bytes, as 32 hex digits: the name of the job's NICs on shm and of its connections. Other
     * processes can see it, so it proves nothing; the secret does. */
    for (int i = 0; i < 16; i++)
        snprintf(w->job + 2 * i, 3, "%02x", all[0].random[i]);
    return MSG_SUCCESS;
}

/* Marks the cores that this rank may use. None are marked if the kernel does not report them; then one is assumed. */
static void mark_cores(uint64_t *marks)
{
    cpu_set_t set;
    CPU_ZERO(&set);
    if (sched_getaffinity(0, sizeof set, &set) == 0)
        /* Core i is bit i % 64 of word i / 64, modulo N_CORES. */
        for (unsigned i = 0; i < CPU_SETSIZE; i++)
            if (CPU_ISSET(i, &set))
                marks[i % N_CORES / 64] |= UINT64_C(1) << i % 64;
}

/* On a described machine each rank counts as a host of its own, so ranks do not use this machine's shared memory.
 * Returns MSG_SUCCESS or an error. */
int msg_greet(msg_world *w, const msg_options *o)
{
    char rank[32];
    snprintf(rank, sizeof rank, "machine, rank %d", w->rank);
    struct hello own = {.magic = MAGIC,
                        .host = hash_host(msg_on_machine() ? rank : o->host),
                        .machine = hash_machine(),
                        .policy = hash_policy(&w->policy),
                        .byte_order = 0x01020304,
                        .rank = (uint32_t)w->rank,
                        .n_ranks = (uint32_t)w->n_ranks,
                        .pid = (uint32_t)getpid()};
    struct hello *all = calloc((size_t)w->n_ranks, sizeof *all);
    if (all == NULL)
        return msg_fail(w, MSG_ERR_NO_MEMORY, "no memory");
    /* Two jobs with the same name would collide on shm. Without random bytes the time is used. */
    if (getrandom(own.random, sizeof own.random, 0) != (ssize_t)sizeof own.random)
        own.random[0] = (uint8_t)vk_now();
    msg_calibration_of(&w->policy, o->network_device, own.calibration);
    mark_cores(own.cores);
    int code = msg_allgather(w, o, &own, sizeof own, all);
    if (code == MSG_SUCCESS)
        code = compare_hellos(w, all);
    free(all);
    return code;
}
