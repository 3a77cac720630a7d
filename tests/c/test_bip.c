/*
 * test_bip.c - BIP on every link: test_bip LINK [CASE], LINK one of shm, eth, udp, each with "+fault".
 *
 * Ranks are processes, which find each other as C programs under `viakit run` do: by the environment, and by an
 * exchange with the process that started them. The cases are in bip_cases_basic.c (messages) and bip_cases_life.c
 * (ranks that end); what they are held to is docs/bip.md.
 */
#include <errno.h>
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "bip/launch.h"
#include "bip_cases.h"
#include "netns.h"

#define FAULTS "loss=5%,dup=5%,reorder=5%,corrupt=1%"

typedef struct {
    const char *name;
    int n_ranks;
    void (*main)(int rank, int n);
    int may_die; /* bits: ranks that may end in any way */
    int classic; /* main opens its job by bip.h */
    void (*options)(bip_options *options);
} test_case;

static const test_case *the_case;
static const char *link_kind; /* "shm", "eth", "udp" */
static int faulty, namespaces[2] = {-1, -1};
/* This process's rank. */
bip_job *job;
/* A word that all ranks share, beside the messages: by it a case waits for what the other has seen. */
int *flag;

/* ---------------------------------------------------------------- what cases are made of */

/* Waits until the message has left. */
void send_to(int dst, int tag, const void *buf, size_t len)
{
    int id = bip_isend_bytes(job, dst, tag, buf, len);
    OK(id);
    OK(bip_swait_id(job, id, WAIT_MS));
}

size_t recv_from(int tag, void *buf, size_t max, int *node)
{
    size_t len = 0;
    int id = bip_irecv_bytes(job, tag, buf, max), from = -1;
    OK(id);
    OK(bip_rwait_id(job, id, &len, &from, WAIT_MS));
    if (node)
        *node = from;
    return len;
}

/* All ranks meet, by messages with tags of their own. Each sends to all and receives from all, so none leaves before
 * the last one has arrived. */
void meet(int rank, int n)
{
    char c = 0;
    for (int i = 0; i < n; i++)
        if (i != rank)
            send_to(i, -1000 - rank, &c, 1);
    for (int i = 0; i < n; i++)
        if (i != rank)
            recv_from(-1000 - i, &c, 1, NULL);
}

/* ---------------------------------------------------------------- the cases
 *
 * Their options: end-to-end checksums, and packets of one page with nearly no short messages. Then so few places that
 * they run out, receives that must come first, and so many places that buffers run out before credits do. */

static void checksums(bip_options *o)
{
    o->checksum = 1;
}

static void fixed_packets(bip_options *o)
{
    o->packet = 4096;
    o->small = 1;
}

static void few_slots(bip_options *o)
{
    o->n_slots = 4;
    o->small = 1000;
}

static void strict(bip_options *o)
{
    o->strict = 1;
}

static void many_slots(bip_options *o)
{
    o->n_slots = 200;
}

static void first_lost(bip_options *o)
{
    o->faults = "drop=send:0";
}

/* Unreliable: no faults at all, lost frames, damaged frames. The faults of the command line do not apply, because the
 * cases need these. */
static void unreliable(bip_options *o)
{
    o->unreliable = 1;
    o->faults = NULL;
}

static void losing(bip_options *o)
{
    o->unreliable = 1;
    o->faults = "loss=2%,seed=3";
}

static void damaging(bip_options *o)
{
    o->unreliable = 1;
    o->faults = "corrupt=2%,seed=5";
}

/* Name, ranks, function, who may die, whether it opens its job itself, options. */
static const test_case cases[] = {
    {"lengths", 2, case_lengths, 0, 0, NULL},
    {"lengths_checksum", 2, case_lengths, 0, 0, checksums},
    {"packets", 2, case_packets, 0, 0, fixed_packets},
    {"tags", 2, case_tags, 0, 0, NULL},
    {"mixed", 3, case_mixed, 0, 0, NULL},
    {"mixed_few_slots", 4, case_mixed, 0, 0, few_slots},
    {"mixed_blocking", 4, case_mixed, 0, 0, interruptible},
    {"full", 2, case_full, 0, 0, few_slots},
    {"own_queue", 2, case_own_queue, 0, 0, few_slots},
    {"too_long", 2, case_too_long, 0, 0, NULL},
    {"arguments", 2, case_arguments, 0, 0, NULL},
    {"strict", 2, case_strict, 0, 0, strict},
    {"short_only", 2, case_short_only, 0, 0, NULL},
    {"crossing", 2, case_crossing, 0, 0, NULL},
    {"many_receives", 2, case_many_receives, 0, 0, NULL},
    {"leaves", 3, case_leaves, 0, 0, NULL},
    {"killed", 3, case_killed, 2, 0, NULL},
    {"killed_full", 2, case_killed_full, 2, 0, many_slots},
    {"computes", 2, case_computes, 0, 0, first_lost},
    {"interrupt", 2, case_interrupt, 0, 0, interruptible},
    {"classic", 3, case_classic, 0, 1, NULL},
    {"unreliable_lengths", 2, case_lengths, 0, 0, unreliable},
    {"unreliable_tags", 2, case_tags, 0, 0, unreliable},
    {"unreliable_crossing", 2, case_crossing, 0, 0, unreliable},
    {"unreliable_leaves", 3, case_leaves, 0, 0, unreliable},
    {"unreliable_killed", 3, case_killed, 2, 0, unreliable},
    {"unreliable_silent", 2, case_silent, 0, 0, unreliable},
    {"lost_short", 2, case_lost_short, 0, 0, losing},
    {"lost_long", 2, case_lost_long, 0, 0, losing},
    {"damaged_short", 2, case_lost_short, 0, 0, damaging},
    {"damaged_long", 2, case_lost_long, 0, 0, damaging},
};

/* ---------------------------------------------------------------- ranks */

static void setting(const char *name, int value)
{
    char text[16];
    snprintf(text, sizeof text, "%d", value);
    setenv(name, text, 1);
}

static void run_rank(int rank, int fd)
{
    const test_case *c = the_case;
    bip_launch launch;
    uint8_t card[BIP_CARD_LEN], cards[MAX_RANKS * BIP_CARD_LEN];
    char error[BIP_ERROR_LEN] = "", host[16] = "", device[64] = "";
    int wire = strcmp(link_kind, "shm") != 0;
    setting("VIAKIT_RANK", rank);
    setting("VIAKIT_SIZE", c->n_ranks);
    setenv("VIAKIT_SECRET", "000102030405060708090a0b0c0d0e0f101112131415161718191a1b1c1d1e1f", 1);
    snprintf(device, sizeof device, "fd:%d", fd);
    setenv("VIAKIT_RENDEZVOUS", device, 1);
    if (wire) { /* ranks 0, 2 and 1, 3 share hosts */
        if (namespaces[0] >= 0)
            CHECK_EQ(setns(namespaces[rank % 2], CLONE_NEWNET), 0);
        snprintf(device, sizeof device, "%s", "eth:eth0");
        if (strcmp(link_kind, "udp") == 0)
            snprintf(device, sizeof device, "udp:%s", netns_address(0, rank % 2));
        snprintf(host, sizeof host, "host %d", rank % 2);
        setenv("VIAKIT_NETWORK", device, 1);
        setenv("VIAKIT_ADDRESS", host, 1);
    }
    /* bip_init() does for a program of 1997 what the rest of this function does by hand. */
    if (c->classic) {
        c->main(rank, c->n_ranks);
        return;
    }
    /* Step by step: the environment, a NIC, a card with its address, the cards of all ranks, connections. */
    CHECK_EQ(bip_launch_find(&launch, error), 0);
    CHECK_EQ(bip_launch_name(&launch, BIP_MEET_MS, error), 0);
    bip_options options = {.size = sizeof options,
                           .secret = launch.secret,
                           .rank = launch.rank,
                           .n_ranks = launch.n_ranks,
                           .job = launch.job,
                           .host = launch.host,
                           .network_device = launch.network,
                           .faults = faulty ? FAULTS : NULL};
    if (c->options)
        c->options(&options);
    if (bip_open(&options, &job, error) != 0)
        FAIL("bip_open: %s", error);
    bip_card(job, card);
    if (bip_launch_exchange(&launch, card, sizeof card, cards, BIP_MEET_MS, error) != 0)
        FAIL("exchange: %s", error);
    /* A card with a queue of no places, or of more than a VI has, is refused, and changes nothing. Byte 4: n_slots. */
    for (uint32_t wrong = 0; wrong <= 1001; wrong += 1001) {
        uint8_t *of_last = cards + (size_t)(c->n_ranks - 1) * BIP_CARD_LEN + 4;
        uint32_t right;
        memcpy(&right, of_last, sizeof right);
        memcpy(of_last, &wrong, sizeof wrong);
        CHECK_EQ(bip_connect(job, cards, WAIT_MS), BIP_ERR_ARGUMENT);
        memcpy(of_last, &right, sizeof right);
    }
    OK(bip_connect(job, cards, WAIT_MS));
    c->main(rank, c->n_ranks);
    OK(bip_close(job, WAIT_MS));
}

static int read_all(int fd, void *to, size_t len)
{
    for (size_t got = 0; got < len;) {
        ssize_t n = read(fd, (char *)to + got, len - got);
        if (n <= 0)
            return -1;
        got += (size_t)n;
    }
    return 0;
}

/* The launcher's side of one exchange: "VKX1", a length and a blob from every rank; to every rank a word of 0, the
 * number of ranks, and all blobs in order. */
static void serve(const int *sockets, int n)
{
    static char answer[MAX_RANKS * 1024 + 8];
    uint32_t words[2] = {0, (uint32_t)n};
    size_t used = sizeof words;
    memcpy(answer, words, sizeof words);
    for (int i = 0; i < n; i++) {
        char magic[4];
        uint32_t len = 0;
        if (read_all(sockets[i], magic, 4) != 0 || memcmp(magic, "VKX1", 4) != 0 ||
            read_all(sockets[i], &len, 4) != 0 || len > 1000)
            return; /* a rank has failed; its status reports it */
        memcpy(answer + used, &len, 4);
        if (read_all(sockets[i], answer + used + 4, len) != 0)
            return;
        used += 4 + len;
    }
    for (int i = 0; i < n; i++)
        CHECK_EQ(send(sockets[i], answer, used, MSG_NOSIGNAL), (ssize_t)used);
}

static void run_case(const test_case *c)
{
    int sockets[MAX_RANKS], bad = 0;
    pid_t pids[MAX_RANKS];
    the_case = c;
    /* Left by an earlier case. */
    *flag = 0;
    fflush(stdout);
    for (int i = 0; i < c->n_ranks; i++) {
        int pair[2];
        CHECK_EQ(socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair), 0);
        CHECK((pids[i] = fork()) >= 0);
        if (pids[i] == 0) {
            prctl(PR_SET_PDEATHSIG, SIGKILL);
            check_deadline(110);
            /* A rank holds only its own end, or the others would not detect its death. */
            for (int k = 0; k < i; k++)
                close(sockets[k]);
            close(pair[0]);
            run_rank(i, pair[1]);
            CHECK_NOTHING_LEFT();
            exit(0);
        }
        close(pair[1]);
        sockets[i] = pair[0];
    }
    serve(sockets, c->n_ranks); /* words, for a name */
    serve(sockets, c->n_ranks); /* cards */
    for (int i = 0; i < c->n_ranks; i++) {
        int status = 0;
        CHECK_EQ(waitpid(pids[i], &status, 0), pids[i]);
        close(sockets[i]);
        if (status != 0 && !(c->may_die >> i & 1)) {
            fprintf(stderr, "[%s] rank %d ended with status 0x%x\n", check_context, i, status);
            bad = 1;
        }
    }
    if (bad)
        exit(1);
}

int main(int argc, char **argv)
{
    char kind[16];
    if (argc < 2) {
        fprintf(stderr, "usage: test_bip shm|eth|udp[+fault] [CASE]\n");
        return 2;
    }
    snprintf(kind, sizeof kind, "%.*s", (int)strcspn(argv[1], "+"), argv[1]);
    const char *rest = strchr(argv[1], '+');
    /* A job would take any other name for a network; and a name that is no case is an error, not an empty run that
     * passes. */
    int link_known = (strcmp(kind, "shm") == 0 || strcmp(kind, "eth") == 0 || strcmp(kind, "udp") == 0) &&
                     (rest == NULL || strcmp(rest, "+fault") == 0);
    int case_known = argc == 2;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
        case_known |= argc > 2 && strcmp(argv[2], cases[i].name) == 0;
    if (!link_known || !case_known) {
        fprintf(stderr, "test_bip: no such %s: %s\n", link_known ? "case" : "link", argv[link_known ? 2 : 1]);
        return 2;
    }
    link_kind = kind;
    faulty = rest != NULL;
    int refused = strcmp(kind, "shm") != 0 ? netns_hosts(argv, namespaces) : 0;
    if (refused)
        return refused;
    /* nothing of this user's calibration counts here */
    setenv("VIAKIT_BIP_TABLE", "/nonexistent", 1);
    flag = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    CHECK(flag != MAP_FAILED);
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        if (argc > 2 && strcmp(argv[2], cases[i].name) != 0)
            continue;
        snprintf(check_context, sizeof check_context, "%s %s", argv[1], cases[i].name);
        check_deadline(120);
        double began = check_now();
        run_case(&cases[i]);
        printf("%-20s %6.2f s\n", cases[i].name, check_now() - began);
        fflush(stdout);
    }
    return 0;
}
