/*
 * The table of policies, and setting fields by name. Each statement of a paper about a library is a field's value here.
 * Fields that a paper does not mention keep the default of their channel. The papers, as `source` cites them with their
 * sections:
 *
 *   - Ong and Farrell, "Performance Comparison of LAM/MPI, MPICH, and MVICH on a Linux Cluster connected by a Gigabit
 *     Ethernet Network" (2000)
 *   - Turner and Chen, "Protocol-Dependent Message-Passing Performance on Linux Clusters" (2002)
 *   - Prylli and Tourancheau, "BIP: a new protocol designed for high performance networking on Myrinet" (1997)
 *
 * The first three entries, named for their channels, are viakit's own, with measured thresholds. All others are fixed
 * choices of other libraries, so that published results can be measured again. To add a policy, add an entry here: no
 * code depends on a policy's name.
 *
 * Not modelled: costs inside a library that no field stands for, such as MPICH's queues, LAM's envelopes on the wire,
 * or GM's firmware. A policy has the same protocol as its library, not the same instructions.
 *
 * Invariant: the table is constant. A world and a caller have copies, so any thread may read it at any time.
 */
#include "msg/policy.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "msg/msg.h"

/* All messages are sent eagerly. 2^47 - 1 is above the length of any message, because a process on x86-64 addresses
 * 2^47 bytes, and far enough from overflow for additions. */
#define NO_RENDEZVOUS INT64_C(0x7fffffffffff)
#define KIB(n) (INT64_C(1024) * (n))

/* Defaults, then differences: each entry below lists only how it differs from the default, which is what a paper
 * reports. */
#define MSG_X(field, value, text) .field = (value),
#define DEFAULTS .size = sizeof(msg_policy), MSG_POLICY_FIELDS(MSG_X)
/* eager_limit_local -1: ranks of one host connect by the same sockets, so one limit applies to all. */
#define TCP DEFAULTS.channel = "tcp", .rendezvous = MSG_R3, .eager_limit = KIB(64), .eager_limit_local = -1

/* An initializer may name a field twice: the second value counts. */
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Woverride-init"
#ifdef __clang__
#pragma GCC diagnostic ignored "-Winitializer-overrides"
#endif

/* `source` is for readers: it cites the paper and section behind each difference. Sizes that a paper gives in kB are
 * taken as KiB. MPICH's threshold is 128000 bytes in Ong and Farrell, 4.2. */
static const msg_policy table[] = {
    {DEFAULTS.name = "via", .channel = "via", .eager_limit = MSG_CALIBRATED, .eager_limit_local = MSG_CALIBRATED,
     .rendezvous = MSG_CALIBRATED, .credits = MSG_CALIBRATED, .share_from = KIB(32),
     .source = "viakit: eager with credits, rendezvous by RDMA write"},
    {DEFAULTS.name = "bip", .channel = "bip", .eager_limit = MSG_CALIBRATED, .eager_limit_local = MSG_CALIBRATED,
     .credits = 32,
     .source = "viakit: MPI on BIP as MPI-BIP was: credits above its ring, long messages through its pipeline (Prylli "
               "and Tourancheau, 3)"},
    {TCP, .name = "tcp", .eager_limit = MSG_CALIBRATED,
     .source = "viakit: the same engine over sockets, straight into the receiver's buffer"},
    /* MPICH on p4. One thing is common to all: each message is received into a buffer and copied out (copy_recv). */
    {TCP, .name = "mpich-p4", .eager_limit = 128000, .copy_recv = 1, .socket_buffer = KIB(32),
     .source = "Turner and Chen, 3.1 and 4.1: MPICH 1.2.3 on p4, blocking channel, progress only in calls, "
               "P4_SOCKBUFSIZE 32 kB by "
               "default, "
               "rendezvous above 128000 bytes; section 7: all messages are received into a buffer and copied out. "
               "(Ong and Farrell, 4.2, of "
               "1.1.2: socket buffers of 4096 bytes.)"},
    {TCP, .name = "mpich-p4-tuned", .eager_limit = 128000, .copy_recv = 1, .socket_buffer = KIB(256),
     .source = "Turner and Chen, 4.1: P4_SOCKBUFSIZE raised from 32 to 256 kB, from 75 to 400 Mbit/s"},
    {TCP, .name = "mpich-1.1.2", .eager_limit = 128000, .copy_recv = 1, .socket_buffer = 4096,
     .source = "Ong and Farrell, 4.2: MPICH 1.1.2 on p4 with its default settings, socket buffers of 4096 bytes, "
               "long messages from 128000 bytes on"},
    /* LAM. Client to client is direct; lamd routes through the daemons. */
    {TCP, .name = "lam-c2c", .eager_limit = KIB(64), .request_data = KIB(64), .socket_buffer = MSG_BUFFERS_FOLLOW,
     .source =
         "Ong and Farrell, 4.2: LAM client to client, short messages below 64 kB, socket buffers of that length and an "
         "envelope. The first packet of a long message has data, here 64 kB, which these buffers hold; the rest "
         "follows an acknowledgement. Turner and Chen, 3.2: with -O, no conversion of data"},
    {TCP, .name = "lam-c2c-convert", .eager_limit = KIB(64), .request_data = KIB(64),
     .socket_buffer = MSG_BUFFERS_FOLLOW, .convert = 1,
     .source = "Turner and Chen, 4.2: LAM without -O on a homogeneous cluster, 350 instead of nearly 550 Mbit/s"},
    {TCP, .name = "lam-6.3", .eager_limit = KIB(128) - 1, .request_data = KIB(128) - 1,
     .socket_buffer = MSG_BUFFERS_FOLLOW, .convert = 1,
     .source = "Ong and Farrell, 4.2: LAM 6.3 as they measured it: C2C, messages of 128 kB and more are long, and the "
               "socket buffers follow this limit; without -O, which the paper does not mention"},
    {TCP, .name = "lam-lamd", .eager_limit = KIB(64), .socket_buffer = MSG_BUFFERS_FOLLOW, .route = MSG_ROUTE_DAEMON,
     .spin_us = -1,
     .source =
         "Turner and Chen, 3.2 and 4.2: mpirun -lamd, all messages through the daemons: 260 Mbit/s, twice the latency. "
         "Waits sleep at once, so that the daemons have the cores"},
    /* MPI/Pro: progress by a thread, which each message wakes. */
    {TCP, .name = "mpi-pro", .eager_limit = KIB(32), .progress = MSG_PROGRESS_THREAD,
     .source = "Turner and Chen, 3.3 and 4.3: MPI/Pro 1.6.3, a thread of its own manages progress, tcp_long 32 kB by "
               "default"},
    {TCP, .name = "mpi-pro-tuned", .eager_limit = KIB(128), .progress = MSG_PROGRESS_THREAD,
     .source = "Turner and Chen, 4.3: tcp_long raised to 128 kB"},
    /* MP_Lite: messages move in a signal handler while the program computes (wait.c: signal_main). */
    {TCP, .name = "mp_lite", .eager_limit = NO_RENDEZVOUS, .socket_buffer = -1, .progress = MSG_PROGRESS_SIGNAL,
     .source = "Turner and Chen, 3.4: MP_Lite 2.3, SIGIO keeps data flowing through socket buffers of the greatest "
               "length allowed; "
               "no handshake "
               "for long messages is mentioned"},
    /* PVM: a daemon in the way, a copy at each end, or neither, as its options choose. */
    {TCP, .name = "pvm", .eager_limit = NO_RENDEZVOUS, .copy_send = 1, .copy_recv = 1, .route = MSG_ROUTE_DAEMON,
     .daemon_bytes = 4096, .daemon_packets = 1, .spin_us = -1,
     .source = "Turner and Chen, 3.5 and 4.5: PVM 3.4.3 by default, through the pvmd daemons, data copied before and "
               "after: 90 Mbit/s. The daemons send packets of 4096 bytes, and wait for the acknowledgement of each"},
    {TCP, .name = "pvm-direct", .eager_limit = NO_RENDEZVOUS, .copy_send = 1, .copy_recv = 1,
     .source = "Turner and Chen, 4.5: pvm_setopt for direct routes, 330 Mbit/s"},
    {TCP, .name = "pvm-direct-inplace", .eager_limit = NO_RENDEZVOUS,
     .source = "Turner and Chen, 4.5: direct routes and PvmDataInPlace, which saves both copies, 415 Mbit/s"},
    /* TCGMSG: every send is synchronous. */
    {TCP, .name = "tcgmsg", .eager_limit = NO_RENDEZVOUS, .synchronous = 1, .socket_buffer = KIB(32),
     .source = "Turner and Chen, 3.6 and 7: TCGMSG 4.04, a thin layer; SND blocks until the matching RCV is complete; "
               "SR_SOCK_BUF_SIZE 32 kB"},
    {TCP, .name = "tcgmsg-tuned", .eager_limit = NO_RENDEZVOUS, .synchronous = 1, .socket_buffer = KIB(256),
     .source = "Turner and Chen, 7: SR_SOCK_BUF_SIZE raised from 32 to 256 kB, up to raw TCP"},
    {TCP, .name = "tcgmsg-mpich", .eager_limit = 128000, .copy_recv = 1, .synchronous = 1, .socket_buffer = KIB(256),
     .source = "Turner and Chen, 4.6: TCGMSG on MPICH loses nothing beside MPICH alone, but SND still blocks until the "
               "matching RCV is complete"},
    {TCP, .name = "ip-gm", .eager_limit = NO_RENDEZVOUS,
     .source =
         "Turner and Chen, 5: NetPIPE's TCP module over IP on GM, 48 us: TCP alone, with one copy in each kernel"},
    /* On VIA. MVICH connects all pairs when it starts (MSG_CONNECT_ALL). eager_limit_local -1: the papers give one
     * threshold, for ranks of different hosts. */
    {DEFAULTS.name = "mvich-rput", .channel = "via", .connect = MSG_CONNECT_ALL, .eager_limit = KIB(16),
     .eager_limit_local = -1,
     .source = "Turner and Chen, 6.1 and 6.2: MVICH 1.0 with VIADEV_RPUT_SUPPORT, vital for performance; the RDMA "
               "threshold shows "
               "at 16 kB"},
    {DEFAULTS.name = "mvich-rput-tuned", .channel = "via", .connect = MSG_CONNECT_ALL, .eager_limit = KIB(64),
     .eager_limit_local = -1,
     .source = "Turner and Chen, 6.1: via_long raised to 64 kB removes the dip, more froze the system; section 3.3 "
               "has a similar parameter of MPI/Pro"},
    {DEFAULTS.name = "mvich-rput-spin", .channel = "via", .connect = MSG_CONNECT_ALL, .eager_limit = KIB(128),
     .eager_limit_local = -1, .spin_us = 10000,
     .source = "Turner and Chen, 6.1: VIADEV_SPIN_COUNT raised to 1000 and the rendezvous threshold to 128 kB help in "
               "the intermediate range; a longer spin_us stands for the count"},
    {DEFAULTS.name = "mpi-pro-via", .channel = "via", .eager_limit = KIB(32), .eager_limit_local = -1,
     .progress = MSG_PROGRESS_THREAD,
     .source = "Turner and Chen, 3.3 and 6.2: MPI/Pro on VIA, whose thread manages progress: 42 us where MVICH has 10; "
               "via_long has the default of tcp_long here, because the paper gives none"},
    {DEFAULTS.name = "mvich-rget", .channel = "via", .connect = MSG_CONNECT_ALL, .eager_limit = KIB(16),
     .eager_limit_local = -1, .rendezvous = MSG_RGET,
     .source = "MVICH with RDMA reads; Ong and Farrell, 4.2 describes such a get protocol for MPICH, not for MVICH"},
    {DEFAULTS.name = "mvich-r3", .channel = "via", .connect = MSG_CONNECT_ALL, .eager_limit = KIB(16),
     .eager_limit_local = -1, .rendezvous = MSG_R3,
     .source = "Turner and Chen, 6.1: MVICH without VIADEV_RPUT_SUPPORT: a handshake, then copied segments"},
    /* On Myrinet's GM in the paper, and on VIA here: both send without the kernel, and both have RDMA writes. spin_us
     * stands for the three ways of gm-recv. */
    {DEFAULTS.name = "mpich-gm", .channel = "via", .eager_limit = KIB(16), .eager_limit_local = -1,
     .source = "Turner and Chen, 5: MPICH-GM on Myrinet, polling, eager up to 16 kB, which is optimal; here on VIA"},
    {DEFAULTS.name = "mpich-gm-blocking", .channel = "via", .eager_limit = KIB(16), .eager_limit_local = -1,
     .spin_us = -1, .source = "Turner and Chen, 5: --gm-recv blocking, 36 us instead of 16"},
    {DEFAULTS.name = "mpich-gm-hybrid", .channel = "via", .eager_limit = KIB(16), .eager_limit_local = -1,
     .spin_us = 50,
     .source = "Turner and Chen, 5: --gm-recv hybrid, the times of polling without its burden on the CPU"},
    {DEFAULTS.name = "mpi-pro-gm", .channel = "via", .eager_limit = KIB(16), .eager_limit_local = -1,
     .progress = MSG_PROGRESS_THREAD,
     .source = "Turner and Chen, 3.3 and 5: MPI/Pro on GM, nearly identical to MPICH-GM, with its progress thread"},
    {DEFAULTS.name = "mp_lite-via", .channel = "via", .eager_limit = KIB(16), .eager_limit_local = -1,
     .source = "Turner and Chen, 6.1 and 6.2: MP_Lite 2.3's VIA module, RDMA from 16 kB on"},
};
#pragma GCC diagnostic pop
#undef MSG_X

#define N_POLICIES ((int)(sizeof table / sizeof *table))

const msg_policy *msg_policy_at(int i)
{
    return i >= 0 && i < N_POLICIES ? &table[i] : NULL;
}

const msg_policy *msg_policy_find(const char *name)
{
    for (int i = 0; i < N_POLICIES; i++)
        if (name && strcmp(table[i].name, name) == 0)
            return &table[i];
    return NULL;
}

/* ---------------------------------------------------------------- fields by name */

/* Names, texts and offsets of the numeric fields, from the one list in policy.h. */
static const struct {
    const char *name, *text;
    size_t offset;
} fields[] = {
#define MSG_X(field, value, text) {#field, text, offsetof(msg_policy, field)},
    MSG_POLICY_FIELDS(MSG_X)
#undef MSG_X
};
#define N_FIELDS ((int)(sizeof fields / sizeof *fields))

/* Words that stand for numbers, by field. A word of one field is an error in another. */
static const struct {
    const char *field, *word;
    int64_t value;
} words[] = {
    {"rendezvous", "rput", MSG_RPUT},
    {"rendezvous", "rget", MSG_RGET},
    {"rendezvous", "r3", MSG_R3},
    {"progress", "caller", MSG_PROGRESS_CALLER},
    {"progress", "thread", MSG_PROGRESS_THREAD},
    {"progress", "signal", MSG_PROGRESS_SIGNAL},
    {"connect", "first", MSG_CONNECT_FIRST},
    {"connect", "all", MSG_CONNECT_ALL},
    {"route", "direct", MSG_ROUTE_DIRECT},
    {"route", "daemon", MSG_ROUTE_DAEMON},
    {"eager_limit", "unlimited", NO_RENDEZVOUS},
    {"socket_buffer", "max", -1},
    {"socket_buffer", "follow", MSG_BUFFERS_FOLLOW},
    {"eager_limit", "calibrated", MSG_CALIBRATED},
    {"eager_limit_local", "calibrated", MSG_CALIBRATED},
    {"rendezvous", "calibrated", MSG_CALIBRATED},
    {"rendezvous_local", "calibrated", MSG_CALIBRATED},
    {"rendezvous_local", "rput", MSG_RPUT},
    {"rendezvous_local", "rget", MSG_RGET},
    {"rendezvous_local", "r3", MSG_R3},
    {"credits", "calibrated", MSG_CALIBRATED},
};

/* The valid values of each numeric field: least to most, and the others. Where a field has an upper bound for its
 * effect only, the code that reads it limits it (make_buffers in via_open.c, buffer_length in tcp_open.c). */
#define ANY INT64_MAX
#define LONGEST_US INT64_C(1000000000000) /* 11 days: ten times as many nanoseconds fit into 64 bits (csrc/coll) */
static const struct range {
    const char *field;
    int64_t least, most;
    int n_others;
    int64_t others[2];
} ranges[] = {
    {"eager_limit", 0, NO_RENDEZVOUS, 1, {MSG_CALIBRATED}},
    {"eager_limit_local", 0, NO_RENDEZVOUS, 2, {-1, MSG_CALIBRATED}},
    {"rendezvous", MSG_RPUT, MSG_R3, 1, {MSG_CALIBRATED}},
    {"rendezvous_local", MSG_RPUT, MSG_R3, 2, {-1, MSG_CALIBRATED}},
    {"request_data", 0, ANY, 0, {0}},
    {"rdma_from", 0, ANY, 0, {0}},
    {"share_from", 0, ANY, 1, {-1}},
    {"piece", 1, ANY, 0, {0}},
    {"credits", 1, ANY, 1, {MSG_CALIBRATED}},
    {"pool_bytes", 0, ANY, 0, {0}},
    {"unexpected_bytes", 0, ANY, 0, {0}},
    {"synchronous", 0, 1, 0, {0}},
    {"copy_send", 0, 1, 0, {0}},
    {"copy_recv", 0, 1, 0, {0}},
    {"convert", 0, 1, 0, {0}},
    {"progress", MSG_PROGRESS_CALLER, MSG_PROGRESS_SIGNAL, 0, {0}},
    {"route", MSG_ROUTE_DIRECT, MSG_ROUTE_DAEMON, 0, {0}},
    {"daemon_bytes", 1, MSG_DAEMON_BYTES, 0, {0}},
    {"daemon_packets", 0, ANY, 0, {0}},
    {"socket_buffer", 0, ANY, 2, {-1, MSG_BUFFERS_FOLLOW}},
    {"nodelay", 0, 1, 0, {0}},
    {"spin_us", -1, LONGEST_US, 0, {0}},
    {"yield_us", -1, LONGEST_US, 0, {0}},
    {"cache_bytes", 0, ANY, 0, {0}},
    {"cache_entries", 0, ANY, 0, {0}},
    {"reliability", 2, 2, 1, {4}},
    {"connect", MSG_CONNECT_FIRST, MSG_CONNECT_ALL, 0, {0}},
};
_Static_assert(sizeof ranges / sizeof *ranges == sizeof fields / sizeof *fields, "each field has a range");

/* Index order is that of MSG_POLICY_FIELDS, here and in msg_policy_get. */
const char *msg_policy_field_name(int i)
{
    return i >= 0 && i < N_FIELDS ? fields[i].name : NULL;
}

/* Every numeric field is an int64_t at an offset, so one pair of functions reads and writes them all. Index i is the
 * order in MSG_POLICY_FIELDS. hello.c hashes the fields in this order to check that all ranks have the same policy. */
static int64_t *field_at(msg_policy *policy, int i)
{
    return (int64_t *)(void *)((char *)policy + fields[i].offset);
}

int64_t msg_policy_get(const msg_policy *policy, int i)
{
    return i >= 0 && i < N_FIELDS ? *(const int64_t *)(const void *)((const char *)policy + fields[i].offset) : 0;
}

/* Writes an error text and returns -1. error may be NULL: no text is wanted. */
__attribute__((format(printf, 2, 3))) static int refuse(char *error, const char *format, ...)
{
    if (error) {
        va_list args;
        va_start(args, format);
        vsnprintf(error, MSG_ERROR_LEN, format, args);
        va_end(args);
    }
    return -1;
}

/* Appends the text of a valid value: its word, if it has one. */
static void put_value(char *text, size_t room, const char *before, const char *field, int64_t value)
{
    size_t len = strlen(text);
    for (size_t w = 0; w < sizeof words / sizeof *words; w++)
        if (strcmp(words[w].field, field) == 0 && words[w].value == value) {
            snprintf(text + len, room - len, "%s%s", before, words[w].word);
            return;
        }
    snprintf(text + len, room - len, "%s%lld", before, (long long)value);
}

/* Returns 0 if field i has a valid value, else -1 and a text that names the valid ones. */
static int check_range(const msg_policy *policy, int i, char *error)
{
    const struct range *r = ranges;
    int64_t value = msg_policy_get(policy, i);
    char valid[160] = "";
    while (strcmp(r->field, fields[i].name) != 0)
        r++;
    if (value >= r->least && value <= r->most)
        return 0;
    for (int k = 0; k < r->n_others; k++)
        if (value == r->others[k])
            return 0;
    put_value(valid, sizeof valid, "", r->field, r->least);
    if (r->most == ANY)
        snprintf(valid + strlen(valid), sizeof valid - strlen(valid), " or more");
    else if (r->most > r->least)
        put_value(valid, sizeof valid, " to ", r->field, r->most);
    for (int k = 0; k < r->n_others; k++)
        put_value(valid, sizeof valid, ", or ", r->field, r->others[k]);
    return refuse(error, "%s is %lld: give %s (%s)", r->field, (long long)value, valid, fields[i].text);
}

/* The size comes first: a policy of another size has other fields. */
int msg_policy_check(const msg_policy *policy, char *error)
{
    if (policy->size != sizeof *policy || memchr(policy->name, 0, sizeof policy->name) == NULL ||
        memchr(policy->channel, 0, sizeof policy->channel) == NULL)
        return refuse(error, "the policy is not complete: begin with one from msg_policy_find and change its fields");
    for (int i = 0; i < N_FIELDS; i++)
        if (check_range(policy, i, error) != 0)
            return -1;
    if (policy->route == MSG_ROUTE_DAEMON && strcmp(policy->channel, "tcp") != 0)
        return refuse(error, "route is daemon, but channel %s has no daemons: give channel tcp, or route direct",
                      policy->channel);
    return 0;
}

/* "128000", "64K", "1M", "-1", and hexadecimal or octal with the prefix of C. Returns 0, or -1: no number, an unknown
 * suffix, or more than 63 bits. */
static int parse_number(const char *text, int64_t *value)
{
    char *end;
    errno = 0;
    long long number = strtoll(text, &end, 0);
    int shift = 0;
    if (end == text || errno)
        return -1;
    if (*end)
        switch (*end++) {
        case 'k':
        case 'K':
            shift = 10;
            break;
        case 'm':
        case 'M':
            shift = 20;
            break;
        case 'g':
        case 'G':
            shift = 30;
            break;
        default:
            return -1;
        }
    /* Compared before shifting, so that a number that does not fit is refused, not truncated. */
    if (*end || number > (INT64_MAX >> shift) || number < 0 - (INT64_MAX >> shift))
        return -1;
    *value = (int64_t)number * ((int64_t)1 << shift);
    return 0;
}

/* Sets one of the two text fields. msg_world_open checks whether a channel of this name exists. Returns 0, or -1 and a
 * text. */
static int set_word(msg_policy *policy, const char *field, const char *value, char *error)
{
    char *to = strcmp(field, "name") == 0 ? policy->name : policy->channel;
    size_t room = to == policy->name ? sizeof policy->name : sizeof policy->channel;
    if (*value == 0 || strlen(value) >= room)
        return refuse(error, "%s '%.40s': 1 to %zu characters", field, value, room - 1);
    strcpy(to, value);
    return 0;
}

/* A word of the field is tried before a number, so that "rget" and 1 are both accepted. *policy changes only on
 * success. */
int msg_policy_set(msg_policy *policy, const char *field, const char *value, char *error)
{
    int i = 0;
    if (strcmp(field, "name") == 0 || strcmp(field, "channel") == 0)
        return set_word(policy, field, value, error);
    while (i < N_FIELDS && strcmp(fields[i].name, field) != 0)
        i++;
    if (i == N_FIELDS)
        return refuse(error, "a policy has no field '%.40s'; it has channel, %s, %s, %s ...", field, fields[0].name,
                      fields[1].name, fields[2].name);
    int64_t number;
    for (size_t w = 0; w < sizeof words / sizeof *words; w++)
        if (strcmp(words[w].field, field) == 0 && strcasecmp(words[w].word, value) == 0) {
            *field_at(policy, i) = words[w].value;
            return 0;
        }
    if (parse_number(value, &number) != 0)
        return refuse(error, "%s=%.40s: a number is needed, such as 65536 or 64K (%s)", field, value, fields[i].text);
    int64_t before = msg_policy_get(policy, i);
    *field_at(policy, i) = number;
    if (check_range(policy, i, error) == 0)
        return 0;
    *field_at(policy, i) = before;
    return -1;
}

/* Works on a copy, so that an error in the last item leaves the policy unchanged. */
int msg_policy_parse(msg_policy *policy, const char *text, char *error)
{
    char copy[1024], *rest = copy, *item;
    msg_policy result = *policy;
    if (strlen(text) >= sizeof copy)
        return refuse(error, "a policy's text has at most %zu characters", sizeof copy - 1);
    strcpy(copy, text);
    for (int i = 0; (item = strsep(&rest, ",")) != NULL; i++) {
        char *equals = strchr(item, '=');
        if (equals) {
            *equals = 0;
            if (msg_policy_set(&result, item, equals + 1, error) != 0)
                return -1;
        } else if (*item) {
            const msg_policy *named = msg_policy_find(item);
            if (i > 0 || named == NULL)
                return refuse(
                    error, "'%.40s': expected the name of a policy first, then field=value, separated by commas", item);
            result = *named;
        }
    }
    *policy = result;
    return 0;
}
