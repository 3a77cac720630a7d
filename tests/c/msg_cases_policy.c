/*
 * msg_cases_policy.c - cases of test_msg: the values that the fields of a policy take, and the policies of the table.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "check.h"
#include "msg/engine.h"
#include "msg_calls.h"
#include "msg_cases.h"

/* For each field: valid values, then invalid ones. A row's unused values repeat others. */
#define FIELD(name, ...) {#name, offsetof(msg_policy, name), __VA_ARGS__}
static const struct {
    const char *name;
    size_t offset;
    int64_t valid[3], invalid[3];
} ranges[] = {
    FIELD(eager_limit, {0, 0x7fffffffffff, -2}, {-1, -3, INT64_MAX}),
    FIELD(eager_limit_local, {0, -1, -2}, {-3, INT64_MIN, INT64_MAX}),
    FIELD(rendezvous, {0, 2, -2}, {-1, 3, INT64_MIN}),
    FIELD(rendezvous_local, {-1, 2, -2}, {-3, 3, INT64_MAX}),
    FIELD(request_data, {0, 1, INT64_MAX}, {-1, -2, INT64_MIN}),
    FIELD(rdma_from, {0, 1, INT64_MAX}, {-1, -2, INT64_MIN}),
    FIELD(share_from, {-1, 0, INT64_MAX}, {-2, -3, INT64_MIN}),
    FIELD(piece, {1, 4096, INT64_MAX}, {0, -1, INT64_MIN}),
    FIELD(credits, {1, 64, -2}, {0, -1, -3}),
    FIELD(pool_bytes, {0, 1, INT64_MAX}, {-1, -2, INT64_MIN}),
    FIELD(unexpected_bytes, {0, 1, INT64_MAX}, {-1, -2, INT64_MIN}),
    FIELD(synchronous, {0, 1, 1}, {-1, 2, INT64_MAX}),
    FIELD(copy_send, {0, 1, 1}, {-1, 2, INT64_MAX}),
    FIELD(copy_recv, {0, 1, 1}, {-1, 2, INT64_MAX}),
    FIELD(convert, {0, 1, 1}, {-1, 2, INT64_MAX}),
    FIELD(progress, {0, 1, 2}, {-1, 3, INT64_MAX}),
    FIELD(route, {0, 0, 0}, {-1, 2, 1}), /* 1: only channel tcp has daemons */
    FIELD(daemon_bytes, {1, 4096, 8192}, {0, -1, 8193}),
    FIELD(daemon_packets, {0, 1, INT64_MAX}, {-1, -2, INT64_MIN}),
    FIELD(socket_buffer, {0, -1, -3}, {-2, -4, INT64_MIN}),
    FIELD(nodelay, {0, 1, 1}, {-1, 2, INT64_MAX}),
    FIELD(spin_us, {-1, 0, 1000000000000}, {-2, INT64_MIN, INT64_MAX}),
    FIELD(yield_us, {-1, 0, 1000000000000}, {-2, INT64_MIN, INT64_MAX}),
    FIELD(cache_bytes, {0, 1, INT64_MAX}, {-1, -2, INT64_MIN}),
    FIELD(cache_entries, {0, 1, INT64_MAX}, {-1, -2, INT64_MIN}),
    FIELD(reliability, {2, 4, 4}, {1, 3, 5}),
    FIELD(connect, {0, 1, 1}, {-1, 2, INT64_MAX}),
};

/* Opens a world of one rank with the policy. */
static int open_with(const msg_policy *policy, char *error)
{
    msg_world *w = NULL;
    msg_options o = {.size = sizeof o, .n_ranks = 1, .policy = policy};
    int code = msg_world_open(&o, &w, error);
    CHECK((w != NULL) == (code == MSG_SUCCESS));
    return w ? msg_world_close(w, 0) : code;
}

/* Each field takes its valid values and no other. An error names the field and its value. */
void case_ranges(msg_world **world, int rank, int n_ranks)
{
    char error[MSG_ERROR_LEN], begin[64], value[32];
    (void)world, (void)rank, (void)n_ranks;
    for (int i = 0; msg_policy_field_name(i); i++) {
        CHECK(strcmp(msg_policy_field_name(i), ranges[i].name) == 0);
        for (int k = 0; k < 6; k++) {
            msg_policy p = *msg_policy_find("via"), by_text = p;
            int64_t to = k < 3 ? ranges[i].valid[k] : ranges[i].invalid[k - 3];
            int contradicts = strcmp(ranges[i].name, "route") == 0 && to == 1, settable = k < 3 || contradicts;
            *(int64_t *)(void *)((char *)&p + ranges[i].offset) = to;
            snprintf(check_context, sizeof check_context, "%s=%lld", ranges[i].name, (long long)to);
            snprintf(value, sizeof value, "%lld", (long long)to);
            CHECK_EQ(open_with(&p, error), k < 3 ? MSG_SUCCESS : MSG_ERR_ARG);
            CHECK_EQ(msg_policy_set(&by_text, ranges[i].name, value, NULL), settable ? 0 : -1);
            CHECK_EQ(msg_policy_get(&by_text, i), msg_policy_get(settable ? &p : msg_policy_find("via"), i));
            snprintf(begin, sizeof begin, "%s is %s: give ", ranges[i].name, value);
            if (contradicts)
                strcpy(begin, "route is daemon, but");
            CHECK(k < 3 || strncmp(error, begin, strlen(begin)) == 0);
        }
    }
    /* Every policy of the table is valid. */
    for (int i = 0; msg_policy_at(i); i++)
        CHECK_EQ(msg_policy_check(msg_policy_at(i), error), 0);
}

/* Every policy of the table carries messages; text sets fields, and ranks with different policies get an error. Texts
 * come first: a whole policy, single fields, and invalid ones. */
void case_policies(msg_world **world, int rank, int n_ranks)
{
    msg_policy p = *msg_policy_find("tcp");
    char error[MSG_ERROR_LEN];
    (void)n_ranks;
    CHECK_EQ(msg_policy_parse(&p, "mpich-p4,socket_buffer=256K,rendezvous=r3,progress=thread", error), 0);
    CHECK_EQ(p.socket_buffer, 262144);
    CHECK_EQ(p.eager_limit, 128000);
    CHECK_EQ(p.progress, MSG_PROGRESS_THREAD);
    CHECK_EQ(msg_policy_parse(&p, "nonsense", error), -1);
    CHECK_EQ(msg_policy_parse(&p, "credits=many", error), -1);
    CHECK_EQ(msg_policy_parse(&p, "colour=3", error), -1);
    CHECK(msg_policy_find("nonsense") == NULL && msg_policy_at(-1) == NULL);
    for (int i = 0; msg_policy_field_name(i); i++)
        CHECK_EQ(msg_policy_set(&p, msg_policy_field_name(i), "no number", error), -1);
    /* Then every policy, each with a world of its own. */
    for (int i = 0; msg_policy_at(i); i++) {
        msg_world *w = NULL;
        int code = job_open(msg_policy_at(i)->name, &w, error);
        if (code)
            FAIL("%s: %s", msg_policy_at(i)->name, error);
        CHECK(*msg_policy_at(i)->source);
        static char buf[300000];
        static const size_t lens[] = {0, 5, 1000, 40000, 150001, 300000};
        for (int k = 0; k < 6; k++)
            for (int sender = 0; sender < 2; sender++) {
                msg_status s;
                if (rank == sender) {
                    pattern_fill(buf, lens[k], (unsigned)k);
                    OK(msg_send(w, 1, buf, lens[k], !rank, k, MSG_STANDARD));
                } else {
                    memset(buf, 0, lens[k]);
                    OK(msg_recv(w, 1, buf, sizeof buf, !rank, k, &s));
                    CHECK_EQ(s.len, lens[k]);
                    CHECK(pattern_holds(buf, lens[k], (unsigned)k));
                }
            }
        OK(msg_world_close(w, CHECK_WAIT_S * 1000));
    }
    /* Ranks that were started differently find out when they open. */
    msg_world *w = *world, *other = NULL;
    GIVES(job_open(rank ? "credits=9" : "credits=10", &other, error), MSG_ERR_MISMATCH);
    GIVES(job_open("channel=pigeon", &other, error), MSG_ERR_ARG);
    CHECK(other == NULL);
}
