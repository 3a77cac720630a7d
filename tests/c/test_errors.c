/*
 * test_errors.c - docs/errors.md is the specification: each cause of an error at each reliability level, and each code
 * that a call returns. test_errors ERRORS.MD [ROW]
 *
 * The test reads the tables of the page. For each cell it opens two NICs of this process on loop, with a filter where a
 * frame has to be lost, and produces the row's cause. It describes the effect on both sides in the page's words, and
 * compares the text with the cell. At the end every error of vipl.h must have occurred, so that a row that is missing
 * in the page, or a code that no row produces, is detected.
 */
#define _DEFAULT_SOURCE
#include <pthread.h>

#include "errors_host.h"
#include "page.h"

#define CELL 200 /* bytes of a cell's text */

/* ---------------------------------------------------------------- causes; each makes it happen and returns at once */

/* Each `here` is the side on which the cause lies, as the page has it. */
static void reserved_bits(host *here, host *there)
{
    VIP_DESCRIPTOR *d = prepare(here, 0, 8);
    (void)there;
    d->CS.Control = 0x10;
    send_now(here, d);
}

static void wrong_sum(host *here, host *there)
{
    VIP_DESCRIPTOR *d = prepare(here, 0, 8);
    (void)there;
    d->CS.Length = 9;
    send_now(here, d);
}

static void other_tag(host *here, host *there)
{
    VIP_DESCRIPTOR *d = prepare(here, 0, 8);
    (void)there;
    d->DS[0].Local.Handle = here->other_mh;
    send_now(here, d);
}

static void too_long(host *here, host *there)
{
    (void)there;
    send_now(here, prepare(here, 0, 65537));
}

static void too_short(host *here, host *there)
{
    post_recv(there, prepare(there, 0, 7));
    send_now(here, prepare(here, 0, 8));
}

static void deregistered(host *here, host *there)
{
    VIP_DESCRIPTOR *d = prepare(there, 0, 8);
    d->DS[0].Local.Handle = there->extra_mh;
    post_recv(there, d);
    CHECK_OK(VipDeregisterMem(there->nic, there->mem, there->extra_mh));
    send_now(here, prepare(here, 0, 8));
}

static void no_receive(host *here, host *there)
{
    (void)there;
    send_now(here, prepare(here, 0, 8));
}

static void write_denied(host *here, host *there)
{
    send_now(here, prepare_write(here, there, there->extra_mh, 8)); /* without the right */
}

static void write_denied_immediate(host *here, host *there)
{
    VIP_DESCRIPTOR *d = prepare_write(here, there, there->extra_mh, 8);
    post_recv(there, prepare(there, 0, 8));
    d->CS.Control |= VIP_CONTROL_IMMEDIATE;
    send_now(here, d);
}

/* The provider's frame kinds (csrc/link/frame_format.h), which the filter gets. */
enum { KIND_SEND = 1, KIND_WRITE = 2 };

/* The second frame is lost; at the unreliable level the next message shows it. */
static void frame_lost(host *here, host *there)
{
    /* BIG fills several frames, so the second one exists. */
    post_recv(there, prepare(there, 0, BIG));
    CHECK_OK(VipPostRecv(there->vi, prepare(there, 1, 8), there->mh));
    lose_frames(1, 1, KIND_SEND);
    send_now(here, prepare(here, 0, BIG));
    CHECK_OK(VipPostSend(here->vi, prepare(here, 1, 8), here->mh));
}

static void write_lost(host *here, host *there)
{
    CHECK_OK(VipPostRecv(there->vi, prepare(there, 1, 8), there->mh));
    lose_frames(1, 1, KIND_WRITE);
    send_now(here, prepare_write(here, there, there->mh, BIG));
    CHECK_OK(VipPostSend(here->vi, prepare(here, 1, 8), here->mh));
}

static void write_damaged(host *here, host *there)
{
    /* One frame's payload is damaged; the filter picks a frame for which the damage falls behind the header. */
    lose.spoil = 1;
    write_lost(here, there);
}

/* The memory where the descriptor lies, not that of its data. */
static void deregister_descriptor(host *here, host *there)
{
    VIP_DESCRIPTOR *d = prepare(there, 0, 8);
    there->looked_at = d;
    CHECK_OK(VipPostRecv(there->vi, d, there->extra_mh));
    CHECK_OK(VipDeregisterMem(there->nic, there->mem, there->extra_mh));
    send_now(here, prepare(here, 0, 8));
}

static void silence_while_writing(host *here, host *there)
{
    lose_frames(0, INT32_MAX, 0);
    send_now(here, prepare_write(here, there, there->mh, 8));
}

static void silence_while_reading(host *here, host *there)
{
    VIP_DESCRIPTOR *d = prepare_write(here, there, there->mh, 8);
    d->CS.Control = VIP_CONTROL_OP_RDMAREAD;
    lose_frames(0, INT32_MAX, 0);
    send_now(here, d);
}

/* Nothing of what `here` sends arrives: INT32_MAX frames are lost. */
static void silence(host *here, host *there)
{
    (void)there;
    lose_frames(0, INT32_MAX, 0);
    send_now(here, prepare(here, 0, 8));
}

static void disconnected(host *here, host *there)
{
    (void)there;
    post_recv(here, prepare(here, 0, 8));
    CHECK_OK(VipDisconnect(here->vi));
}

static void partner_disconnects(host *here, host *there)
{
    post_recv(here, prepare(here, 0, 8));
    CHECK_OK(VipDisconnect(there->vi));
}

static void not_aligned(host *here, host *there)
{
    VIP_DESCRIPTOR *d = (VIP_DESCRIPTOR *)(void *)((uint8_t *)prepare(here, 0, 8) + 32);
    (void)there;
    CHECK_RET(VipPostSend(here->vi, d, here->mh), VIP_INVALID_PARAMETER);
}

static void too_many(host *here, host *there)
{
    (void)there;
    for (VIP_ULONG i = 0; i < here->attr.MaxDescriptorsPerQueue; i++)
        /* Their places repeat: what counts is that they are taken. */
        CHECK_OK(VipPostRecv(here->vi, prepare(here, (int)(i % 64), 8), here->mh));
    CHECK_RET(VipPostRecv(here->vi, prepare(here, 0, 8), here->mh), VIP_ERROR_RESOURCE);
}

/* Two receives complete, there is room for one. The partner of the table's is the one who sends. */
static void cq_too_small(host *here, host *there)
{
    for (int i = 0; i < 2; i++)
        CHECK_OK(VipPostRecv(here->vi, prepare(here, i, 8), here->mh));
    for (int i = 0; i < 2; i++)
        CHECK_OK(VipPostSend(there->vi, prepare(there, i, 8), there->mh));
}

static const struct {
    const char *name;
    void (*happen)(host *here, host *there);
    int needs; /* 1: a filter, 2: a small completion queue */
} causes[] = {
    {"send, reserved control bits", reserved_bits, 0},
    {"send, length is not the sum", wrong_sum, 0},
    {"send, memory of another tag", other_tag, 0},
    {"send, more than MaxTransferSize", too_long, 0},
    {"receive too short", too_short, 0},
    {"receive, memory deregistered", deregistered, 0},
    {"receive, the descriptor's own memory deregistered", deregister_descriptor, 0},
    {"no receive posted", no_receive, 0},
    {"RDMA write, not granted", write_denied, 0},
    {"RDMA write with immediate data, not granted", write_denied_immediate, 0},
    {"a frame of a message is lost", frame_lost, 1},
    {"a frame of an RDMA write is lost", write_lost, 1},
    {"a frame of an RDMA write is damaged", write_damaged, 1},
    {"nothing arrives any more", silence, 1},
    {"nothing arrives any more, an RDMA write under way", silence_while_writing, 1},
    {"nothing arrives any more, an RDMA read under way", silence_while_reading, 1},
    {"disconnected with a receive posted", disconnected, 0},
    {"the partner disconnects, a receive posted", partner_disconnects, 0},
    {"descriptor not aligned", not_aligned, 0},
    {"more descriptors than the queue holds", too_many, 0},
    {"completion queue too small", cq_too_small, 2},
};

/* ---------------------------------------------------------------- what is seen */

static void add_word(char *text, const char *word)
{
    size_t n = strlen(text);
    snprintf(text + n, CELL / 2 - n, " %s", word);
}

static unsigned bits_seen; /* over all cells */
static unsigned codes_seen;

static VIP_VI_STATE state_of(host *h)
{
    VIP_VI_STATE state;
    CHECK_OK(VipQueryVi(h->vi, &state, NULL, NULL, NULL));
    return state;
}

static void see(host *h, const char *who, char *text)
{
    static const struct {
        unsigned bit;
        const char *name;
    } bits[] = {
        {VIP_STATUS_FORMAT_ERROR, "FORMAT_ERROR"},
        {VIP_STATUS_PROTECTION_ERROR, "PROTECTION_ERROR"},
        {VIP_STATUS_LENGTH_ERROR, "LENGTH_ERROR"},
        {VIP_STATUS_PARTIAL_ERROR, "PARTIAL_ERROR"},
        {VIP_STATUS_DESC_FLUSHED_ERROR, "DESC_FLUSHED_ERROR"},
        {VIP_STATUS_TRANSPORT_ERROR, "TRANSPORT_ERROR"},
        {VIP_STATUS_RDMA_PROT_ERROR, "RDMA_PROT_ERROR"},
        {VIP_STATUS_REMOTE_DESC_ERROR, "REMOTE_DESC_ERROR"},
    };
    size_t n = (size_t)snprintf(text, CELL / 2, "%s", who);
    VIP_VI_STATE state = state_of(h);
    if (h->looked_at) {
        /* The status is read as a program would that polls it: it is written last. */
        unsigned status = __atomic_load_n(&h->looked_at->CS.Status, __ATOMIC_ACQUIRE);
        if (status & VIP_STATUS_DONE && !(status & VIP_STATUS_ERROR_MASK))
            add_word(text, "done");
        /* Only of what is completed. */
        for (size_t i = 0; status & VIP_STATUS_DONE && i < sizeof(bits) / sizeof(*bits); i++)
            if (status & bits[i].bit) {
                add_word(text, bits[i].name);
                bits_seen |= bits[i].bit;
            }
    }
    for (int code = 0; code <= VIP_ERROR_CATASTROPHIC; code++)
        if (atomic_load(&h->errors[code])) {
            add_word(text, viakit_error_code_name(code) + strlen("VIP_ERROR_"));
            codes_seen |= 1u << code;
        }
    if (state != VIP_STATE_CONNECTED)
        add_word(text, viakit_state_name((int)state) + strlen("VIP_STATE_"));
    if (strlen(text) == n)
        add_word(text, "-");
}

/* Where the connection stays up, a message each way passes; after it nothing else can come to light of what was before.
 * 1 if it did. */
static int goes_on(host *here, host *there, void (*cause)(host *, host *))
{
    host *sides[2] = {here, there};
    if (cause == too_many || cause == cq_too_small || lose.n > BIG)
        return 0; /* no room for another receive, or no way */
    for (int i = 0; i < 2; i++)
        if (strcmp(viakit_state_name((int)state_of(sides[i])), "VIP_STATE_CONNECTED"))
            return 0;
    for (int i = 0; i < 2; i++) {
        VIP_DESCRIPTOR *r = prepare(sides[i], 100, 8), *s = prepare(sides[!i], 101, 8);
        CHECK_OK(VipPostRecv(sides[i]->vi, r, sides[i]->mh));
        CHECK_OK(VipPostSend(sides[!i]->vi, s, sides[!i]->mh));
        WAIT_UNTIL(__atomic_load_n(&r->CS.Status, __ATOMIC_ACQUIRE) & VIP_STATUS_DONE &&
                   __atomic_load_n(&s->CS.Status, __ATOMIC_ACQUIRE) & VIP_STATUS_DONE);
        CHECK_STATUS(r, VIP_STATUS_DONE | VIP_STATUS_OP_RECEIVE);
    }
    return 1;
}

/* Drives one cell until it looks as the table says. Returns 1, with a message, if it never does. */
static int check_cause(const char *name, VIP_RELIABILITY_LEVEL level, const char *expected)
{
    host here, there;
    char seen_here[CELL / 2], seen_there[CELL / 2], seen[CELL + 8] = "";
    size_t i = 0;
    while (i < sizeof(causes) / sizeof(*causes) && strcmp(causes[i].name, name))
        i++;
    if (i == sizeof(causes) / sizeof(*causes))
        FAIL("no cause \"%s\" is known", name);
    snprintf(check_context, sizeof(check_context), "%s, level %d", name, level);
    lose.kind = -1;
    lose.n = 0;
    lose.spoil = 0;
    host_open(&here, level, causes[i].needs == 2);
    host_open(&there, level, 0);
    if (causes[i].needs == 1)
        CHECK_OK(viakit_set_frame_filter(here.nic, filter, NULL));
    join_hosts(&here, &there);
    causes[i].happen(&here, &there);
    double end = check_now() + CHECK_WAIT_S / 2;
    /* Errors may arrive one after the other: at first a side may show less than the table says. */
    do {
        see(&here, "here", seen_here);
        see(&there, "there", seen_there);
        snprintf(seen, sizeof(seen), "%s; %s", seen_here, seen_there);
        sched_yield();
    } while (strcmp(seen, expected) && check_now() < end);
    /* And afterwards it must not show more. */
    if (!strcmp(seen, expected) && goes_on(&here, &there, causes[i].happen)) {
        see(&here, "here", seen_here);
        see(&there, "there", seen_there);
        snprintf(seen, sizeof(seen), "%s; %s", seen_here, seen_there);
    }
    lose.kind = -1;
    host_close(&here);
    host_close(&there);
    CHECK_NOTHING_LEFT();
    if (strcmp(seen, expected) == 0)
        return 0;
    printf("%s, level %d:\n  the table says \"%s\"\n  seen was       \"%s\"\n", name, level, expected, seen);
    return 1;
}

/* ---------------------------------------------------------------- calls */

typedef struct {
    host *h;
    int reject;
    VIP_VI_HANDLE with; /* to accept with, if it does not reject */
    VIP_RETURN answer;
} server;

static void *serve(void *p)
{
    server *s = p;
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_CONN_HANDLE conn;
    host_address(s->h, "door", &local);
    CHECK_OK(VipConnectWait(s->h->nic, &local.net, 1000 * CHECK_WAIT_S, &remote.net, &attr, &conn));
    s->answer = s->reject ? VIP_SUCCESS : VipConnectAccept(conn, s->with);
    /* An accept that was refused uses nothing up: the handle is still good for a rejection. */
    CHECK_OK(VipConnectReject(conn));
    return NULL;
}

/* Sends a request to a server on `there`. Returns the client's result, and in s the result of the server's call. */
static VIP_RETURN ask_server(host *here, server *s, VIP_VI_HANDLE client)
{
    address local, remote;
    VIP_VI_ATTRIBUTES attr;
    VIP_RETURN r;
    pthread_t thread;
    CHECK_EQ(pthread_create(&thread, NULL, serve, s), 0);
    host_address(here, "client", &local);
    host_address(s->h, "door", &remote);
    /* Until the server's thread waits. */
    do
        r = VipConnectRequest(client, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr);
    while (r == VIP_NO_MATCH);
    CHECK_EQ(pthread_join(thread, NULL), 0);
    return r;
}

static VIP_VI_HANDLE another_vi(host *h, VIP_RELIABILITY_LEVEL level, VIP_ULONG max_transfer, uintptr_t qos)
{
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = level, .MaxTransferSize = max_transfer, .QoS = (VIP_QOS)qos};
    VIP_VI_HANDLE vi;
    CHECK_OK(VipCreateVi(h->nic, &attr, NULL, NULL, &vi));
    return vi;
}

/* here and there are connected, at this level. */
static VIP_RETURN call(const char *how, host *here, host *there, VIP_RELIABILITY_LEVEL level)
{
    VIP_VI_ATTRIBUTES attr = {.ReliabilityLevel = level};
    VIP_VI_STATE state;
    VIP_DESCRIPTOR *d;
    VIP_VI_HANDLE vi = another_vi(here, level, 65536, 0);
    address local, remote;
    server s = {.h = there};
    host_address(here, "client", &local);
    host_address(there, "absent", &remote);
    if (!strcmp(how, "query"))
        return VipQueryVi(here->vi, &state, NULL, NULL, NULL);
    if (!strcmp(how, "take a receive that is not done") || !strcmp(how, "wait 1 ms for a receive")) {
        CHECK_OK(VipPostRecv(here->vi, prepare(here, 0, 8), here->mh));
        return how[0] == 't' ? VipRecvDone(here->vi, &d) : VipRecvWait(here->vi, 1, &d);
    }
    if (!strcmp(how, "query a VI that is gone")) {
        CHECK_OK(VipDestroyVi(vi));
        return VipQueryVi(vi, &state, NULL, NULL, NULL);
    }
    if (!strcmp(how, "destroy a connected VI"))
        return VipDestroyVi(here->vi);
    if (!strcmp(how, "request a connection that the server rejects")) {
        s.reject = 1;
        return ask_server(here, &s, vi);
    }
    /* The server's answer is what the page speaks of; the client is rejected in the end. */
    if (!strncmp(how, "accept with a VI of another ", 28)) {
        VIP_RELIABILITY_LEVEL other =
            level == VIP_SERVICE_UNRELIABLE ? VIP_SERVICE_RELIABLE_DELIVERY : VIP_SERVICE_UNRELIABLE;
        s.with = how[28] == 'l'   ? another_vi(there, other, 65536, 0)
                 : how[28] == 'M' ? another_vi(there, level, 32768, 0)
                                  : another_vi(there, level, 65536, 5);
        CHECK_RET(ask_server(here, &s, vi), VIP_REJECT);
        return s.answer;
    }
    if (!strcmp(how, "create a VI with another NIC's tag")) {
        attr.Ptag = there->tag;
        return VipCreateVi(here->nic, &attr, NULL, NULL, &vi);
    }
    if (!strcmp(how, "create an unreliable VI for RDMA reads")) {
        attr.ReliabilityLevel = VIP_SERVICE_UNRELIABLE;
        attr.EnableRdmaRead = VIP_TRUE;
        return VipCreateVi(here->nic, &attr, NULL, NULL, &vi);
    }
    if (!strcmp(how, "take from an empty queue"))
        return VipSendDone(here->vi, &d);
    if (!strcmp(how, "connect a connected VI"))
        return VipConnectRequest(here->vi, &local.net, &remote.net, 1000, &attr);
    if (!strcmp(how, "look up an unknown host"))
        return VipNSGetHostByName(here->nic, (VIP_CHAR *)"no.such.host", &remote.net, 0);
    if (!strcmp(how, "request a connection from an unknown host"))
        remote.room[9] ^= 0x55;
    else if (strcmp(how, "request a connection where no server waits"))
        FAIL("this test has no code for \"%s\"", how);
    return VipConnectRequest(vi, &local.net, &remote.net, 1000 * CHECK_WAIT_S, &attr);
}

static unsigned returns_seen;

static int check_call(const char *code, const char *how)
{
    /* The three levels by their values, as VIPL defines them. */
    static const VIP_RELIABILITY_LEVEL levels[] = {1, 2, 4};
    int wrong = 0;
    for (int i = 0; i < 3; i++) {
        host here, there;
        VIP_RETURN r;
        snprintf(check_context, sizeof(check_context), "%s, level %d", how, levels[i]);
        lose.kind = -1;
        host_open(&here, levels[i], 0);
        host_open(&there, levels[i], 0);
        join_hosts(&here, &there);
        r = call(how, &here, &there, levels[i]);
        /* One bit per code. */
        returns_seen |= 1u << r;
        if (strcmp(check_return_name((int)r) + strlen("VIP_"), code)) {
            printf("%s, level %d: the table says %s, seen was %s\n", how, levels[i], code, check_return_name((int)r));
            wrong++;
        }
        host_close(&here);
        host_close(&there);
        CHECK_NOTHING_LEFT();
    }
    return wrong;
}

/* ---------------------------------------------------------------- the page */

int main(int argc, char **argv)
{
    static const VIP_RELIABILITY_LEVEL levels[] = {1, 2, 4};
    int n_cells = 0, n_causes = 0, n_wrong = 0, table = 0, header = 0;
    char *line, *cells[5];
    CHECK(argc > 1);
    check_deadline(100);
    /* The page is cut up in place. */
    char *rest = page_read(argv[1]);
    while ((line = strsep(&rest, "\n"))) {
        if (!strncmp(line, "<!-- table: ", 12)) {
            table = line[13] == 'a' && line[14] == 'u' ? 1 : 2; /* causes, calls */
            header = 2;                                         /* the head and the rule below it */
            continue;
        }
        if (line[0] != '|') {
            table = header > 0 ? table : 0;
            continue;
        }
        int n = page_split(line, cells, 5);
        if (!table || header-- > 0 || (argc > 2 && strcmp(argv[2], cells[0])))
            continue;
        header = 0;
        n_causes += table == 1;
        for (int i = 1; table == 1 && i < n; i++, n_cells++)
            n_wrong += check_cause(cells[0], levels[i - 1], cells[i]);
        if (table == 2) {
            n_wrong += check_call(cells[0], cells[1]);
            n_cells += 3;
        }
    }
    printf("%d cells, %d wrong\n", n_cells, n_wrong);
    CHECK(n_cells > 0);
    /* Only of a whole run: a single ROW sees little. */
    if (argc == 2 && n_wrong == 0) {
        /* Everything that vipl.h names was seen; of reads the page says where. */
        const unsigned never = 1u << VIP_ERROR_RDMAR_PROT;
        CHECK_EQ(n_causes, sizeof(causes) / sizeof(*causes));
        CHECK_EQ(bits_seen, VIP_STATUS_ERROR_MASK);
        CHECK_EQ(codes_seen, ((1u << (VIP_ERROR_CATASTROPHIC + 1)) - 1) & ~never);
        CHECK_EQ(returns_seen, (1u << VIP_ERROR_NOT_SUPPORTED) - 1);
    }
    return n_wrong != 0;
}
