/*
 * test_station.c - how a NIC lists the NICs of its station, and how often (link/station.c, base/budget.h): the two ways
 * of reading the list agree, a kernel that refuses the first one receives one request only, and long readings are rare.
 *
 * A process in which the first way is refused has a seccomp filter: socket(AF_NETLINK) traps, and the handler counts
 * the attempt and returns the error.
 */
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <stddef.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <ucontext.h>

#include "base/budget.h"
#include "check.h"
#include "link/station.h"

#define N_NICS 3
#define N_MORE 2

static char prefix[64];
static volatile int n_attempts, refusal;

/* Claims a port, whose number is returned. The socket stays open. */
static uint16_t claim(void)
{
    uint16_t port = 0;
    int fd = socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0);
    CHECK(fd >= 0);
    CHECK_EQ(station_claim(fd, prefix, &port), 0);
    return port;
}

/* Checks that exactly these ports are listed, in any order. */
static void listed(const uint16_t *expected, int n)
{
    uint16_t found[16];
    CHECK_EQ(station_ports(prefix, -1, found, 16), n);
    for (int i = 0; i < n; i++) {
        int times = 0;
        for (int k = 0; k < n; k++)
            times += found[k] == expected[i];
        CHECK_EQ(times, 1);
    }
}

/* The result of the system call that trapped. */
static void trapped(int number, siginfo_t *info, void *context)
{
    ucontext_t *u = context;
    (void)number;
    (void)info;
    n_attempts++;
#if defined(__x86_64__)
    u->uc_mcontext.gregs[REG_RAX] = -refusal;
#elif defined(__aarch64__)
    u->uc_mcontext.regs[0] = (unsigned long long)-refusal;
#else
    (void)u;
    FAIL("the result of a system call is not known for this processor");
#endif
}

/* Returns 0 if the kernel has no such filters. */
static int refuse_netlink(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_socket, 0, 3),
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, args[0])),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, AF_NETLINK, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_TRAP),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {sizeof code / sizeof *code, code};
    struct sigaction action = {.sa_sigaction = trapped, .sa_flags = SA_SIGINFO};
    CHECK_EQ(sigaction(SIGSYS, &action, NULL), 0);
    return prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0 &&
           syscall(SYS_seccomp, SECCOMP_SET_MODE_FILTER, 0, &program) == 0;
}

/* In a child: all attempts to open netlink fail with this error. The list is read five times from the text. */
static int refused(int error, const uint16_t *ports, int n, int attempts)
{
    int status = 0;
    pid_t child = fork();
    CHECK(child >= 0);
    if (child == 0) {
        refusal = error;
        if (!refuse_netlink())
            _exit(CHECK_SKIPPED);
        for (int i = 0; i < 5; i++)
            listed(ports, n);
        CHECK_EQ(n_attempts, attempts);
        _exit(0);
    }
    CHECK_EQ(waitpid(child, &status, 0), child);
    CHECK(WIFEXITED(status));
    CHECK(WEXITSTATUS(status) == 0 || WEXITSTATUS(status) == CHECK_SKIPPED);
    return WEXITSTATUS(status) == 0;
}

/* Both ways list the same NICs. A lasting refusal is noted, a lack of descriptors is not. */
static int lists(void)
{
    uint16_t ports[N_NICS + N_MORE];
    for (int i = 0; i < N_NICS; i++)
        ports[i] = claim();
    listed(ports, N_NICS);
    int ran = refused(EPROTONOSUPPORT, ports, N_NICS, 1) && refused(EMFILE, ports, N_NICS, 5);
    for (int i = N_NICS; i < N_NICS + N_MORE; i++)
        ports[i] = claim();
    listed(ports, N_NICS + N_MORE);
    return ran;
}

/* Returns how often work of this length runs in one second, if it is requested all the time. */
static int runs(struct vk_budget *b, uint64_t *now, uint64_t length)
{
    int n = 0;
    for (uint64_t end = *now + VK_SECOND; *now < end;) {
        if (vk_budget_allows(b, *now)) {
            vk_budget_spend(b, *now, *now + length);
            *now += length;
            n++;
        } else
            *now += 10 * VK_US;
    }
    return n;
}

/* Times are given, none is measured. */
static void budgets(void)
{
    struct vk_budget b = {0};
    uint64_t now = VK_SECOND;
    /* Short work: a burst of 64, then once in a millisecond. */
    for (int i = 0; i < 64; i++) {
        CHECK(vk_budget_allows(&b, now));
        vk_budget_spend(&b, now, now);
    }
    CHECK(!vk_budget_allows(&b, now));
    int n = runs(&b, &now, VK_US);
    CHECK(n >= 990 && n <= 1010);

    /* Long work takes 1/8 of the time besides itself: once in 90 ms here. */
    n = runs(&b, &now, 10 * VK_MS);
    CHECK(n >= 10 && n <= 13);

    /* A process that was stopped during its work waits for one second, and not for eight times the stop. */
    now += VK_SECOND;
    vk_budget_spend(&b, now, now + 3600 * VK_SECOND);
    now += 3600 * VK_SECOND;
    CHECK(!vk_budget_allows(&b, now + VK_SECOND - VK_MS));
    CHECK(vk_budget_allows(&b, now + VK_SECOND + VK_MS));

    /* After a long time without work the burst is no longer than at first. */
    now += 3600 * VK_SECOND;
    for (n = 0; vk_budget_allows(&b, now); n++)
        vk_budget_spend(&b, now, now);
    CHECK_EQ(n, 64);
}

int main(void)
{
    check_deadline(60);
    snprintf(prefix, sizeof prefix, "viakit/test_station/%d", (int)getpid());
    budgets();
    if (!lists()) {
        printf("not run: this kernel has no seccomp filters\n");
        return CHECK_SKIPPED;
    }
    return 0;
}
