# cython: language_level=3
"""sim/replay.h as Cython sees it."""

from libc.stdint cimport int32_t, int64_t

cdef extern from "sim/replay.h" nogil:
    enum:
        SIM_PATHS
        SIM_OK
        SIM_NO_MEMORY
        SIM_INVALID
        SIM_DEADLOCK
    ctypedef struct sim_path:
        double payload
    ctypedef struct sim_op:
        int64_t kind
    ctypedef struct sim_model:
        sim_path path[5]
        double eager_limit, request_ns, local, local_flag_ns, switch_ns, ports, half_duplex
    ctypedef struct sim_schedule:
        int32_t n_ranks, n_hosts
        const int64_t *host
        const int64_t *first
        const sim_op *ops
    ctypedef struct sim_result:
        int64_t messages, bytes, rank, op
        double end_ns
    double sim_message_ns_ "sim_message_ns" (const sim_path *path, double n)
    int sim_replay_ "sim_replay" (const sim_model *model, const sim_schedule *schedule, double *ends_ns,
                                  double *waits_ns, sim_result *result)
