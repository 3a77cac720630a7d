/*
 * msg_cases_revoke.c - cases of test_msg: revoked scopes. Pending operations end, later ones are refused, and all ranks
 * notice.
 */
#include "msg_cases.h"

#include <stdlib.h>

#include "base/atomic.h"
#include "check.h"
#include "msg_calls.h"

enum { FIRST = 10, N_CONTEXTS = 3, OTHER = 20, ID = 77, LONG = 3 << 20 };

/* Operations of rank 1 that nothing on rank 2 matches. Receives end in error. Sends end either way. */
static void leave_pending(msg_world *w, char *data)
{
    msg_request *in[2], *out[5];
    msg_status s[5];
    int any[2];
    const size_t sizes[5] = {0, 8, 5000, LONG, 8};
    OK(msg_irecv(w, FIRST, &any[0], sizeof any[0], 2, 1, &in[0]));
    OK(msg_irecv(w, FIRST + 1, &any[1], sizeof any[1], MSG_ANY_SOURCE, MSG_ANY_TAG, &in[1]));
    for (int i = 0; i < 5; i++)
        OK(msg_isend(w, FIRST + i % N_CONTEXTS, data, sizes[i], 2, i, i == 4 ? MSG_SYNCHRONOUS : MSG_STANDARD,
                     &out[i]));
    job_meet();
    OK(call_wait_all(w, 2, in, s));
    CHECK_EQ(s[0].error, MSG_ERR_REVOKED);
    CHECK_EQ(s[1].error, MSG_ERR_REVOKED);
    OK(call_wait_all(w, 5, out, s));
    for (int i = 0; i < 5; i++)
        CHECK(s[i].error == MSG_SUCCESS || s[i].error == MSG_ERR_REVOKED);
}

static void check_refusals(msg_world *w, char *data)
{
    msg_request *r = NULL;
    msg_status s;
    GIVES(msg_send(w, FIRST, data, 8, 2, 1, MSG_STANDARD), MSG_ERR_REVOKED);
    GIVES(msg_isend(w, FIRST + 2, data, LONG, MSG_PROC_NULL, 1, MSG_STANDARD, &r), MSG_ERR_REVOKED);
    GIVES(msg_irecv(w, FIRST + 1, data, 8, MSG_PROC_NULL, 1, &r), MSG_ERR_REVOKED);
    GIVES(msg_recv(w, FIRST, data, 8, MSG_ANY_SOURCE, 1, &s), MSG_ERR_REVOKED);
    GIVES(msg_probe(w, FIRST, 0, MSG_ANY_TAG, &s, MSG_FOREVER), MSG_ERR_REVOKED);
    CHECK(msg_is_revoked(w, FIRST) && msg_is_revoked(w, FIRST + N_CONTEXTS - 1));
    CHECK(!msg_is_revoked(w, FIRST + N_CONTEXTS) && !msg_is_revoked(w, OTHER));
}

/* Rank 0 revokes, rank 1 has operations under way with rank 2, and rank 2 waits in a receive. */
void case_revoke(msg_world **world, int rank, int n_ranks)
{
    static const int all[] = {0, 1, 2};
    msg_world *w = *world;
    msg_scope scope = {0}, other = {0};
    char *data = calloc(1, LONG), done = 0;
    int next = (rank + 1) % n_ranks, before = (rank + n_ranks - 1) % n_ranks;
    CHECK(data != NULL);
    OK(msg_scope_open(w, &scope, FIRST, N_CONTEXTS, ID));
    OK(msg_scope_open(w, &other, OTHER, 1, ID));
    if (rank == 1)
        leave_pending(w, data);
    else
        job_meet();
    if (rank == 0)
        OK(msg_revoke(&scope, all, 3));
    if (rank == 2)
        GIVES(msg_recv(w, FIRST, data, 8, 1, 99, NULL), MSG_ERR_REVOKED);
    check_refusals(w, data);
    /* Rank 2 discards what rank 1 has sent until it gets this. */
    OK(call_sendrecv(w, OTHER, &done, 1, next, 1, &done, 1, before, 1, NULL));
    WAIT_UNTIL(msg_progress(w) >= 0 && job_counter(w, MSG_COUNTER_unexpected_now) == 0);
    msg_scope_close(&scope);
    CHECK(!msg_is_revoked(w, FIRST));
    OK(msg_scope_open(w, &scope, FIRST, N_CONTEXTS, ID)); /* the revocation is known */
    CHECK(scope.revoked);
    OK(msg_scope_open(w, &scope, FIRST, N_CONTEXTS, ID + 1));
    CHECK(!scope.revoked);
    job_meet();
    OK(call_sendrecv(w, FIRST, &done, 1, next, 1, &done, 1, before, 1, NULL));
    msg_scopes_end(w);
    CHECK(scope.world == NULL && other.world == NULL);
    free(data);
}

void case_revoke_rget(msg_world **world, int rank, int n_ranks)
{
    case_revoke(world, rank, n_ranks);
}

/* Rank 0 notifies rank 1 only, and most ranks have never met. Each passes it on, also one without such a scope. */
void case_revoke_unmet(msg_world **world, int rank, int n_ranks)
{
    static const int one[] = {1};
    msg_world *w = *world;
    msg_scope scope = {0};
    OK(msg_scope_open(w, &scope, rank == 1 ? OTHER : FIRST, 1, ID));
    job_meet();
    if (rank == 0)
        OK(msg_revoke(&scope, one, 1));
    if (rank != 1)
        WAIT_UNTIL(msg_progress(w) < 0 || vk_load_relaxed(&scope.revoked));
    /* Rank 1 makes progress until all are done. */
    for (int i = 0; i < n_ranks; i++) {
        if (i != 1 && rank == 1)
            OK(msg_recv(w, OTHER, NULL, 0, i, 1, NULL));
        if (i == rank && rank != 1)
            OK(msg_send(w, OTHER, NULL, 0, 1, 1, MSG_STANDARD));
    }
    CHECK_EQ(scope.revoked, rank != 1);
    msg_scope_close(&scope);
}
