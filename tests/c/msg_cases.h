/* The cases of test_msg: name, ranks, policy on top of the link's own, links. */
#ifndef MSG_CASES_H
#define MSG_CASES_H

#include "msg_job.h"

#define ON_SHM 1
#define ON_LOOP 2
#define ON_TCP 4
#define ON_VIA (ON_SHM | ON_LOOP)
#define ON_ALL (ON_VIA | ON_TCP)

#define MSG_CASES(X)                            \
    X(alone, 1, NULL, ON_ALL)                   \
    X(sizes, 2, NULL, ON_ALL)                   \
    X(sizes_rget, 2, "rendezvous=rget", ON_VIA) \
    X(sizes_r3, 2, "rendezvous=r3", ON_VIA)     \
    X(ring, 5, NULL, ON_ALL)

#define X(name, ranks, policy, links) void case_##name(msg_world **world, int rank, int n_ranks);
MSG_CASES(X)
#undef X

extern const char *case_link;

#endif
