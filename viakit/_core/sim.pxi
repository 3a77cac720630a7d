# Schedules in virtual time (csrc/sim). viakit.machines computes the paths, viakit.replay makes the schedules. This file
# converts and checks lengths, and calls C without the GIL.

from ccoll cimport *
from csim cimport *

SIM_KINDS = ("compute", "send", "recv", "isend", "irecv", "waitall", "write", "await")
SIM_STAGE_NAMES = ("send_cpu", "send_bus", "up", "down", "recv_bus", "recv_cpu")
SIM_PATH_NUMBERS = sizeof(sim_path) // sizeof(double)


cdef int _sim_path(sim_path *path, object numbers) except -1:
    cdef double *to = <double *>path
    if len(numbers) != SIM_PATH_NUMBERS:
        raise ValueError(f"a path has {SIM_PATH_NUMBERS} numbers (csrc/sim/replay.h), got {len(numbers)}")
    for i in range(SIM_PATH_NUMBERS):
        to[i] = numbers[i]
    return 0


def sim_message_ns(numbers, double nbytes):
    """Return the time of one message of *nbytes* on an idle machine, in nanoseconds: frame by frame.

    *numbers* are the fields of ``sim_path`` in their order.
    """
    cdef sim_path path
    cdef double result
    _sim_path(&path, numbers)
    if not 0 <= nbytes < 1 << 40:
        raise ValueError(f"nbytes is {nbytes}; expected 0 or more, and less than 1 TiB")
    with nogil:
        result = sim_message_ns_(&path, nbytes)
    return result


def sim_replay(model, const int64_t[::1] hosts, const int64_t[::1] first, const int64_t[::1] ops):
    """Run a schedule. Return the ends and the waits of the ranks in ns, the number of messages, and their bytes.

    *model* has the paths and then the other fields of ``sim_model``. *first* has the index of each rank's first
    operation, and the number of all; *ops* has five integers for each operation (``sim_op``).
    """
    cdef sim_model m
    cdef sim_schedule schedule
    cdef sim_result result
    cdef double *ends
    cdef int i, code, n = hosts.shape[0]
    cdef int64_t none = 0
    paths, rest = model[:SIM_PATHS], model[SIM_PATHS:]
    for i in range(SIM_PATHS):
        _sim_path(&m.path[i], paths[i])
    (m.eager_limit, m.request_ns, m.local, m.local_flag_ns, m.switch_ns, m.ports, m.half_duplex) = rest
    if n < 1 or first.shape[0] != n + 1 or first[0] != 0 or first[n] * 5 != ops.shape[0]:
        raise ValueError(f"{n} ranks need {n + 1} indices from 0 to the number of operations; "
                         f"got {first.shape[0]} indices and {ops.shape[0]} / 5 operations")
    schedule.n_ranks = n
    schedule.n_hosts = 0
    for i in range(n):
        if not 0 <= hosts[i] < 1 << 30 or first[i + 1] < first[i]:
            raise ValueError(f"rank {i}: its host is {hosts[i]}, its operations are {first[i]} to {first[i + 1]}")
        schedule.n_hosts = max(schedule.n_hosts, <int>hosts[i] + 1)
    schedule.host = &hosts[0]
    schedule.first = &first[0]
    schedule.ops = <const sim_op *>(&ops[0] if ops.shape[0] else &none)
    ends = <double *>calloc(<size_t>n, 2 * sizeof(double))
    if ends == NULL:
        raise MemoryError("no memory for the times of the ranks")
    try:
        with nogil:
            code = sim_replay_(&m, &schedule, ends, ends + n, &result)
        if code == SIM_NO_MEMORY:
            raise MemoryError(f"no memory to replay {ops.shape[0] // 5} operations")
        if code != SIM_OK:
            kind = ops[5 * (first[result.rank] + result.op)]
            what = SIM_KINDS[kind] if 0 <= kind < len(SIM_KINDS) else kind
            problem = "never ends: its peer has no operation that matches" if code == SIM_DEADLOCK else "is invalid"
            raise ValueError(f"rank {result.rank}: operation {result.op} ({what}) {problem}")
        return [ends[i] for i in range(n)], [ends[n + i] for i in range(n)], result.messages, result.bytes
    finally:
        free(ends)


def barrier_plan(str algorithm, int n, int me, int per_host=1, int cores=1):
    """Return the steps of rank *me* in a barrier of *n* ranks: pairs of "signal" or "await", and the other rank."""
    cdef coll_step *steps = NULL
    cdef int count = 0, i, number = coll_barrier_find(algorithm.encode())
    if number < 0:
        raise ValueError(f"no barrier is called {algorithm!r}; there are {', '.join(barrier_algorithms())}")
    cdef int code = coll_barrier_plan(number, n, me, per_host, cores, &steps, &count)
    if code != _COLL_OK:
        text = _coll_error_text(code).decode()
        raise ValueError(f"barrier {algorithm} of {n} ranks, {per_host} on each host: {text}")
    found = [("signal", steps[i].to) if steps[i].kind == COLL_STEP_SIGNAL else ("await", steps[i].source)
             for i in range(count)]
    free(steps)
    return found


def barrier_by_message(str algorithm):
    """Return True if a barrier signals by messages, False if it does so by RDMA write or by shared memory."""
    return coll_barrier_means(coll_barrier_find(algorithm.encode())) == COLL_BY_MESSAGE
