/*
 * harness.c - runs a table of cases on a link: link names, processes and threads, faults, results.
 *
 * Every case runs in processes of its own, forked from a parent that never opens a NIC: a crash or a hang costs one
 * case. The first failing side is reported, and the parent then ends the other. The tools of the sides (control
 * channel, endpoints, patterns) are in endpoint.c.
 *
 * Beside its own checks every case proves three things by ending well. Both sides came to the same last sync. No object
 * of the library is alive. The process has as many open files and shared mappings as before it opened its NIC.
 */
#define _GNU_SOURCE
#include "harness.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "netns.h"

/* Seconds that a process of a case may live, before CHECK_SLOWER. A peer that dies is noticed after 5 s at most, so
 * only what hangs gets there; with faults everything is repeated. */
#define CASE_SECONDS 60
#define FAULT_CASE_SECONDS 120

static int namespaces[2] = {-1, -1}; /* eth: the two hosts */
/* Of the faults: side A uses twice this number, side B one more, so that the two do not lose the same frames. */
static uint64_t seed;

/* ---------------------------------------------------------------- link names */

/* Two hosts, made of network namespaces. */
static int on_veth(const link_spec *l)
{
    return l->kind == ON_ETH || (l->kind == ON_UDP && !l->one_host);
}

/* The properties of a link decide how its cases run: within a process, a host, or between two hosts. A host that is
 * made of a namespace has no RDMA card, so both sides of verbs use this host's. */
static void set_link(link_spec *l, const viakit_link_info *about)
{
    l->about = about;
    if (!strcmp(about->name, "verbs")) {
        l->kind = ON_UDP;
        l->one_host = 1;
        return;
    }
    l->kind = !about->leaves_process                   ? ON_LOOP
              : !about->leaves_host                    ? ON_SHM
              : about->named_by == VIAKIT_BY_INTERFACE ? ON_ETH
                                                       : ON_UDP;
}

/* Takes the name of a link or of a variant from the beginning of the text; returns what is behind it. The longest known
 * name counts, because one may be the beginning of another ("shm", "shm-ring"). */
static const char *take_name(const char *text, link_spec *l)
{
    static const struct {
        const char *name, *link;
        link_spec spec;
    } variants[] = {
        {"shm-mapped", "shm", {.mapped = 1}},
        {"shm-ring", "shm", {.ring_only = 1}},
        {"eth-auto", "eth", {.form = VIAKIT_FORM_AUTO}},
        {"eth-plain", "eth", {.form = VIAKIT_FORM_PLAIN}},
        {"eth-udp", "eth", {.form = VIAKIT_FORM_UDP}},
        {"udp6-lo", "udp", {.ipv6 = 1, .one_host = 1}},
        {"udp6", "udp", {.ipv6 = 1}},
        {"udp-lo", "udp", {.one_host = 1}},
    };
    for (size_t i = 0; i < sizeof(variants) / sizeof(variants[0]); i++)
        if (!strncmp(text, variants[i].name, strlen(variants[i].name))) {
            *l = variants[i].spec;
            set_link(l, viakit_link_of(variants[i].link));
            return text + strlen(variants[i].name);
        }
    memset(l, 0, sizeof(*l));
    for (int i = 0; viakit_link(i); i++)
        if (!strncmp(text, viakit_link(i)->name, strlen(viakit_link(i)->name))) {
            set_link(l, viakit_link(i));
            return text + strlen(viakit_link(i)->name);
        }
    return NULL;
}

static int parse_link(const char *text, link_spec *l)
{
    const char *rest = take_name(text, l);
    if (rest == NULL)
        return -1;
    l->mtu = 1500;
    snprintf(l->name, sizeof(l->name), "%s", text);
    if (on_veth(l) && !strncmp(rest, "-9000", 5)) {
        l->mtu = 9000;
        rest += 5;
    }
    if (!strcmp(rest, "+fault")) {
        l->fault = 1;
        rest += 6;
    }
    return *rest ? -1 : 0;
}

/* Returns the RDMA device on which verbs is tested, or NULL. A device that is found may have no address, or no link. */
static const char *card(void)
{
    return getenv("VIAKIT_TEST_VERBS");
}

/* ---------------------------------------------------------------- one side */

/* Runs on the NIC's thread. The count rises last: a thread that reads it can read the descriptor of that error. */
static void on_error(VIP_PVOID context, VIP_ERROR_DESCRIPTOR *error)
{
    side *s = context;
    s->last_error = *error;
    atomic_fetch_add_explicit(&s->errors[error->ErrorCode], 1, memory_order_release);
}

/* The faults: of 100 frames 5 lost, 5 doubled, 5 late, 1 damaged. */
static void set_faults(side *s)
{
    viakit_faults f = {.size = sizeof(f), .loss = 0.05, .duplicate = 0.05, .reorder = 0.05, .corrupt = 0.01};
    f.seed = seed * 2 + (uint64_t)s->role;
    CHECK_OK(viakit_set_faults(s->nic, &f));
}

static void open_nic(side *s)
{
    VIP_RETURN r;
    memset(&s->options, 0, sizeof(s->options));
    s->options.size = sizeof(s->options);
    s->options.form = s->link->form;
    s->options.no_thread = !!(s->test->flags & CASE_NO_THREAD);
    s->options.no_cma = s->options.no_map = s->link->ring_only;
    if (s->test->options)
        s->test->options(&s->options);
    r = viakit_open_nic(s->device, &s->options, &s->nic);
    if (r != VIP_SUCCESS)
        FAIL("cannot open %s: %s", s->device, check_return_name(r));
    CHECK_OK(VipQueryNic(s->nic, &s->attr));
    CHECK_OK(VipErrorCallback(s->nic, s, on_error));
    if (s->link->fault)
        set_faults(s);
}

/* An IPv6 station's six bytes are only a mark of its address. The name service supplies the address itself, under the
 * same six bytes that the partner sent over the control channel. */
static void resolve_peer(side *s)
{
    address a;
    char name[64];
    snprintf(name, sizeof(name), "%s", netns_address(1, !s->role));
    memset(&a, 0, sizeof(a));
    a.net.HostAddressLen = 6;
    CHECK_OK(VipNSInit(s->nic, NULL));
    CHECK_OK(VipNSGetHostByName(s->nic, name, &a.net, 0));
    CHECK(!memcmp(a.net.HostAddress, s->peer_host, 6));
    CHECK_OK(VipNSShutdown(s->nic));
}

static void run_side(side *s)
{
    static const VIP_RELIABILITY_LEVEL all[] = {VIP_SERVICE_RELIABLE_DELIVERY, VIP_SERVICE_RELIABLE_RECEPTION,
                                                VIP_SERVICE_UNRELIABLE};
    pid_t pid = getpid();
    open_nic(s);
    /* With faults the unreliable level loses messages, as it may: cases that count on every message leave it out. */
    s->n_levels = s->link->fault ? 2 : 3;
    s->n_burst_levels = s->link->fault || s->link->kind == ON_ETH || s->link->kind == ON_UDP ? 2 : 3;
    memcpy(s->levels, all, sizeof(all));
    CHECK_EQ(s->attr.NicAddressLen, 6);
    side_send(s, s->attr.LocalNicAddress, 6);
    side_recv(s, s->peer_host, 6);
    if (s->link->ipv6 && !s->link->one_host) /* six bytes do not hold the address: the name service is needed */
        resolve_peer(s);
    side_send(s, &pid, sizeof(pid));
    side_recv(s, &s->peer_pid, sizeof(s->peer_pid));
    (s->role == SIDE_A ? s->test->a : s->test->b)(s);
    /* Neither side closes its NIC while the other still works: that would be one more lost connection. */
    if (!(s->test->flags & CASE_KILLS_B))
        SIDE_SYNC(s, 0);
    CHECK_OK(VipCloseNic(s->nic));
}

static void *run_side_thread(void *s)
{
    run_side(s);
    return NULL;
}

static void init_side(side *s, side_role role, const link_spec *link, const test_case *test, int ctl, pid_t parent)
{
    memset(s, 0, sizeof(*s));
    s->role = role;
    s->link = link;
    s->test = test;
    s->ctl = ctl;
    /* A NAME of its own keeps two runs of the tests on one machine apart. */
    if (link->kind == ON_ETH)
        snprintf(s->device, sizeof(s->device), "eth:eth0");
    else if (!strcmp(link->about->name, "verbs"))
        snprintf(s->device, sizeof(s->device), "verbs:%s", card());
    else if (link->kind == ON_UDP && link->one_host) /* a station of its own, for the same reason */
        snprintf(s->device, sizeof(s->device), link->ipv6 ? "udp:[::1]:%d" : "udp:127.0.0.1:%d",
                 10000 + (int)(parent % 20000));
    else if (link->kind == ON_UDP)
        snprintf(s->device, sizeof(s->device), "udp:%s", netns_address(link->ipv6, role));
    else
        snprintf(s->device, sizeof(s->device), "%s:t%d", link->about->name, (int)parent);
}

/* Entries of a directory under /proc/self: open files. */
static int count_entries(const char *directory)
{
    int n = 0;
    DIR *d = opendir(directory);
    CHECK(d != NULL);
    while (readdir(d) != NULL)
        n++;
    closedir(d);
    return n;
}

/* Mappings of files or shared memory: rings, segments, arenas. The allocator's own come and go as it likes. */
static int count_shared_mappings(void)
{
    char line[512], may[8];
    int n = 0;
    FILE *f = fopen("/proc/self/maps", "re");
    CHECK(f != NULL);
    while (fgets(line, sizeof(line), f))
        n += sscanf(line, "%*s %7s", may) == 1 && may[3] == 's';
    fclose(f);
    return n;
}

/* In a child of the runner: the whole of `loop`, or one side. Ends the process. */
__attribute__((noreturn)) static void child(const link_spec *link, const test_case *test, int role, int ctl[2],
                                            pid_t parent)
{
    static side sides[2];
    int files, mappings;
    /* Whatever becomes of the runner, no child outlives it. */
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    check_deadline(link->fault ? FAULT_CASE_SECONDS : CASE_SECONDS);
    /* Two threads of one process: VIPL's loop knows no other process. */
    if (link->kind == ON_LOOP) {
        pthread_t thread;
        snprintf(check_context, sizeof(check_context), "%s %s", link->name, test->name);
        files = count_entries("/proc/self/fd");
        mappings = count_shared_mappings();
        init_side(&sides[0], SIDE_A, link, test, ctl[0], parent);
        init_side(&sides[1], SIDE_B, link, test, ctl[1], parent);
        CHECK_EQ(pthread_create(&thread, NULL, run_side_thread, &sides[1]), 0);
        run_side(&sides[0]);
        CHECK_EQ(pthread_join(thread, NULL), 0);
    } else {
        /* The other side's end must not stay open here: its closing indicates that the other side has died. */
        snprintf(check_context, sizeof(check_context), "%s %s %c", link->name, test->name, role == SIDE_A ? 'A' : 'B');
        close(ctl[!role]);
        if (on_veth(link) && setns(namespaces[role], CLONE_NEWNET))
            FAIL("cannot enter the namespace of host %d: %s", role, strerror(errno));
        files = count_entries("/proc/self/fd");
        mappings = count_shared_mappings();
        init_side(&sides[0], (side_role)role, link, test, ctl[role], parent);
        run_side(&sides[0]);
    }
    /* All opened files are closed again. */
    CHECK_NOTHING_LEFT();
    CHECK_EQ(count_entries("/proc/self/fd"), files);
    CHECK_EQ(count_shared_mappings(), mappings);
    exit(0);
}

/* ---------------------------------------------------------------- the runner */

/* Waits for the case's processes; 1 if it passed. The first failure ends the other side. */
static int collect(const test_case *test, pid_t pids[2], int n)
{
    int passed = 1;
    for (int left = n; left > 0; left--) {
        int status, ok;
        pid_t pid = waitpid(-1, &status, 0);
        if (pid < 0)
            return 0;
        ok = WIFEXITED(status) && WEXITSTATUS(status) == 0;
        if ((test->flags & CASE_KILLS_B) && pid == pids[SIDE_B])
            ok = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
        if (!ok && passed) {
            passed = 0;
            if (WIFSIGNALED(status))
                fprintf(stderr, "%s: side %c ended by signal %d (%s)\n", test->name, pid == pids[0] ? 'A' : 'B',
                        WTERMSIG(status), strsignal(WTERMSIG(status)));
            /* It would only wait for its partner until its deadline. */
            for (int i = 0; i < n; i++)
                if (pids[i] != pid && left > 1)
                    kill(pids[i], SIGKILL);
        }
    }
    return passed;
}

static int run_case(const link_spec *link, const test_case *test)
{
    int ctl[2], n = link->kind == ON_LOOP ? 1 : 2, passed;
    pid_t pids[2] = {-1, -1}, parent = getpid();
    double start = check_now();
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ctl)) {
        perror("socketpair");
        return 0;
    }
    fflush(stdout);
    /* Each child would print the contents of stdout's buffer once more. */
    for (int i = 0; i < n; i++) {
        pids[i] = fork();
        if (pids[i] == 0)
            child(link, test, i, ctl, parent);
    }
    close(ctl[0]);
    close(ctl[1]);
    passed = collect(test, pids, n);
    printf("%s %s %s (%.2f s)\n", passed ? "ok    " : "FAILED", link->name, test->name, check_now() - start);
    return passed;
}

static int applies(const link_spec *link, const test_case *test)
{
    if ((test->flags & CASE_NO_LOOP) && link->kind == ON_LOOP)
        return 0;
    if ((test->flags & CASE_NO_ETH) && on_veth(link))
        return 0;
    if ((test->flags & CASE_ONLY_ETH) && link->kind != ON_ETH)
        return 0;
    if ((test->flags & CASE_ONLY_UDP) && link->kind != ON_UDP)
        return 0;
    if ((test->flags & CASE_ONLY_NETWORK) && !on_veth(link))
        return 0;
    return !((test->flags & CASE_NO_FAULT) && link->fault);
}

static int usage(const char *program, const test_case *cases, size_t n_cases)
{
    fprintf(stderr,
            "usage: %s LINK [CASE...]\n"
            "LINK: loop, shm, shm-mapped, shm-ring, eth-auto, eth-plain, eth-udp, udp, udp6, udp-lo, udp6-lo, verbs; "
            "eth...-9000, udp-9000;\n"
            "      any of them +fault\n"
            "CASE:",
            program);
    for (size_t i = 0; i < n_cases; i++)
        fprintf(stderr, " %s", cases[i].name);
    fprintf(stderr, "\n");
    return 2;
}

static int wanted(const test_case *test, int argc, char **argv)
{
    for (int i = 2; i < argc; i++)
        if (!strcmp(argv[i], test->name))
            return 1;
    return argc <= 2;
}

int harness_main(int argc, char **argv, const test_case *cases, size_t n_cases)
{
    link_spec link;
    int n_passed = 0, n_failed = 0, n_known = 0;
    char why[256];
    const char *given = getenv("VIAKIT_TEST_SEED");
    if (argc < 2 || parse_link(argv[1], &link))
        return usage(argv[0], cases, n_cases);
    for (size_t i = 0; i < n_cases; i++)
        n_known += wanted(&cases[i], argc, argv);
    /* A name that is no case is an error, not an empty run that passes. */
    if (n_known == 0 || (argc > 2 && n_known < argc - 2))
        return usage(argv[0], cases, n_cases);
    if (on_veth(&link) &&
        (netns_enter(argv, why, sizeof(why)) || netns_make_pair(link.mtu, namespaces, why, sizeof(why)))) {
        printf("skipped: %s\n", why);
        return CHECK_SKIPPED;
    }
    if (!strcmp(link.about->name, "verbs") && card() == NULL) {
        printf("skipped: VIAKIT_TEST_VERBS names no RDMA device\n");
        return CHECK_SKIPPED;
    }
    seed = given ? strtoull(given, NULL, 0) : (uint64_t)time(NULL) ^ ((uint64_t)getpid() << 20);
    if (link.fault)
        printf("seed of the faults: VIAKIT_TEST_SEED=%llu\n", (unsigned long long)seed);
    for (size_t i = 0; i < n_cases; i++) {
        if (!wanted(&cases[i], argc, argv) || !applies(&link, &cases[i]))
            continue;
        if (run_case(&link, &cases[i]))
            n_passed++;
        else
            n_failed++;
    }
    printf("%s: %d passed, %d failed\n", link.name, n_passed, n_failed);
    return n_failed ? 1 : 0;
}
