# One rank of a measurement of barriers and collectives (csrc/coll/measure.h). viakit.measure.barrier starts the ranks
# and controls them. This file converts and checks arguments and calls C.

from libc.string cimport memcpy as _coll_memcpy

from ccoll cimport *

cdef extern from "msg/msg.h" nogil:
    enum:
        _COLL_OK "MSG_SUCCESS"
    const char *_coll_error_text "msg_error_text" (int code)

cdef extern from "coll/measure.h" nogil:
    ctypedef struct coll_measure:
        pass
    ctypedef struct coll_measure_options:
        int rank
        int n_ranks
        int (*exchange)(void *context, const void *mine, size_t len, void *gathered) noexcept nogil
        void *exchange_context
        const char *policy
        const char *network_device
        const char *address
        int control_fd
    ctypedef struct coll_measure_run_plan:
        uint64_t n
        uint64_t warmup
        uint64_t skew_ns
        uint64_t seed
        int crowded
        uint64_t *enter
        uint64_t *leave
    int coll_measure_open(const coll_measure_options *options, coll_measure **m, char *error)
    void coll_measure_close(coll_measure *m)
    const coll *coll_measure_group(const coll_measure *m)
    const char *coll_measure_route(const coll_measure *m)
    ctypedef struct coll_measure_work:
        int operation
        size_t len
        int n_ranks
        void *in_ "in"
        void *out
    ctypedef struct coll_measure_mpi:
        const char *library
        uintptr_t comm
        uintptr_t byte
        uintptr_t real
        uintptr_t sum
    int coll_measure_run(coll_measure *m, const coll_measure_work *work, int algorithm,
                         const coll_measure_run_plan *plan)
    int coll_measure_run_mpi(const coll_measure_mpi *handles, const coll_measure_work *work,
                             const coll_measure_run_plan *plan)


def barrier_algorithms():
    """Return the barrier algorithms as a dict from name to description, in the order of their numbers."""
    return {coll_barrier_name(i).decode(): coll_barrier_text(i).decode() for i in range(COLL_N_BARRIERS)}


def collective_algorithms():
    """Return the algorithms of each operation: a dict from operation to a dict from algorithm to description."""
    found = {}
    for o in range(1, COLL_N_OPERATIONS):
        names = found[coll_operation_name(o).decode()] = {}
        while coll_algorithm_name(o, len(names)) != NULL:
            names[coll_algorithm_name(o, len(names)).decode()] = coll_algorithm_text(o, len(names)).decode()
    return found


cdef int _operation_number(str operation) except -1:
    if operation == "turn":
        return 0
    for o in range(1, COLL_N_OPERATIONS):
        if coll_operation_name(o).decode() == operation:
            return o
    raise ValueError(f"no operation is called {operation!r}; there are {', '.join(collective_algorithms())}")


def collective_long_from(str operation, int n):
    """Return the number of bytes from which *n* ranks use the algorithm for long data."""
    return coll_long_from(_operation_number(operation), n)


def collective_plan(str operation, bint is_long, int n, int me, int root, size_t length):
    """Return the steps of rank *me* in an operation of *n* ranks: tuples of the fields of ``struct coll_step``."""
    cdef coll_step *steps = NULL
    cdef int count = 0, i, number = COLL_SCATTER if operation == "scatter" else _operation_number(operation)
    cdef int code = coll_plan(number, is_long, n, me, root, length, &steps, &count)
    if code != _COLL_OK:
        raise RuntimeError(f"{operation} of {n} ranks: {_coll_error_text(code).decode()}")
    found = []
    for i in range(count):
        found.append((steps[i].kind, steps[i].to, steps[i].source, steps[i].out, steps[i].out_len, steps[i].into,
                      steps[i].in_len, steps[i].result))
    free(steps)
    return found


cdef object _coll_work(coll_measure_work *work, str operation, size_t nbytes, int n_ranks):
    """Return zeroed buffers for an operation. The caller keeps them while it runs."""
    work.operation = _operation_number(operation)
    if operation in ("reduce", "allreduce") and nbytes % 8:
        raise ValueError(f"nbytes is {nbytes}; reductions add doubles: expected a multiple of 8")
    if nbytes > (1 << 31) - 1:
        raise ValueError(f"nbytes is {nbytes}; expected below 2 GiB, the most that MPI's functions take")
    work.len = nbytes
    work.n_ranks = n_ranks
    room = max(nbytes * (n_ranks if operation in ("allgather", "alltoall") else 1), <size_t>64)
    buffers = bytes(room), bytes(room)
    work.in_ = PyBytes_AS_STRING(buffers[0])
    work.out = PyBytes_AS_STRING(buffers[1])
    memset(work.in_, 0, room)
    memset(work.out, 0, room)
    return buffers


cdef int _coll_exchange(void *context, const void *mine, size_t length, void *gathered) noexcept with gil:
    cdef BarrierRank rank = <BarrierRank>context
    cdef bytes answer
    try:
        answer = b"".join(rank._exchange(PyBytes_FromStringAndSize(<const char *>mine, <Py_ssize_t>length)))
        if <size_t>len(answer) != length * <size_t>rank._n:
            return 1
        _coll_memcpy(gathered, PyBytes_AS_STRING(answer), <size_t>len(answer))
        return 0
    except BaseException as error:  # C cannot raise: the open fails, and its error has this cause
        rank._failure = error
        return 1


cdef class BarrierRank:
    """One rank of a group that measures barriers.

    Parameters
    ----------
    rank, n_ranks : int
    exchange : callable
        Function of this rank's blob (bytes) that returns the blobs of all ranks in their order. The constructor calls
        it a few times.
    policy : str
        Changes to the message engine's policy ``via``: ``"tcp"``, or fields.
    network : str
        NIC for ranks on other hosts (``"eth:eth0"``); ``""`` if all ranks are on one host.
    address : str
        Address of this host for channel tcp; ``""``: determined automatically.
    control_fd : int
        Stream socket; waits end when its other end is closed. -1: none.

    Raises
    ------
    RuntimeError
        If the ranks cannot be connected.
    """

    cdef coll_measure *_m
    cdef object _exchange
    cdef object _failure
    cdef int _n
    cdef long _generation

    def __cinit__(self, int rank, int n_ranks, exchange, *, str policy="", str network="", str address="",
                  int control_fd=-1):
        cdef char error[256]
        cdef coll_measure_options options
        cdef bytes p = policy.encode(), d = network.encode(), a = address.encode()
        cdef int code
        self._exchange = exchange
        self._n = n_ranks
        self._generation = _generation
        memset(&options, 0, sizeof(options))
        options.rank = rank
        options.n_ranks = n_ranks
        options.exchange = _coll_exchange
        options.exchange_context = <void *>self
        options.control_fd = control_fd
        if p:
            options.policy = p
        if d:
            options.network_device = d
        if a:
            options.address = a
        with nogil:
            code = coll_measure_open(&options, &self._m, error)
        if code != _COLL_OK:
            self._m = NULL
            raise RuntimeError(error.decode("utf-8", "replace")) from self._failure

    def __dealloc__(self):
        self.close()

    def close(self):
        """Leave the group. The call waits up to 3 s for the other ranks."""
        cdef coll_measure *m = self._m
        self._m = NULL
        if m != NULL and self._generation == _generation:  # In a child of fork the group belongs to the parent.
            with nogil:
                coll_measure_close(m)

    cdef coll_measure *_open(self) except NULL:
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._m == NULL:
            raise ValueError("this rank was closed")
        return self._m

    def algorithms(self, str operation="barrier"):
        """Return the names of the algorithms of an operation that this group supports; the same on all ranks."""
        cdef const coll *group = coll_measure_group(self._open())
        cdef int o = _operation_number(operation), i = 0
        names = []
        while coll_algorithm_name(o, i) != NULL:
            if coll_algorithm_check(group, o, i) == _COLL_OK:
                names.append(coll_algorithm_name(o, i).decode())
            i += 1
        return names

    def default(self, str operation="barrier", size_t nbytes=0):
        """Return the algorithm that ``default`` selects for this group and message size."""
        cdef int o = _operation_number(operation)
        return coll_algorithm_name(o, coll_algorithm_default(coll_measure_group(self._open()), o, nbytes)).decode()

    @property
    def route(self):
        """Device that connects this rank to another one: ``"shm:..."``, ``"eth:eth0"``."""
        return coll_measure_route(self._open()).decode()

    def run(self, int algorithm, uint64_t n, uint64_t warmup=0, uint64_t skew_ns=0, uint64_t seed=1,
            bint crowded=False, str operation="barrier", size_t nbytes=0):
        """Run *n* operations. Collective. The parameters and the result are those of :func:`run_mpi`.

        The operation ``"turn"`` yields the core and returns when it gets the core back. It has no algorithms.
        """
        cdef coll_measure *m = self._open()
        cdef coll_measure_run_plan plan
        cdef coll_measure_work work
        times = _coll_plan(&plan, n, warmup, skew_ns, seed, crowded)
        buffers = _coll_work(&work, operation, nbytes, self._n)
        cdef int code
        with nogil:
            code = coll_measure_run(m, &work, algorithm, &plan)
        if code != _COLL_OK:
            name = coll_algorithm_name(work.operation, algorithm).decode() if work.operation else "of the scheduler"
            raise RuntimeError(f"{operation} {name}: {_coll_error_text(code).decode()}")
        return times


cdef object _coll_plan(coll_measure_run_plan *plan, uint64_t n, uint64_t warmup, uint64_t skew_ns, uint64_t seed,
                       bint crowded):
    room = <Py_ssize_t>(8 * (n if skew_ns else 1))
    enter = PyBytes_FromStringAndSize(NULL, room)
    leave = PyBytes_FromStringAndSize(NULL, room)
    plan.n = n
    plan.warmup = warmup
    plan.skew_ns = skew_ns
    plan.seed = seed
    plan.crowded = crowded
    plan.enter = <uint64_t *>PyBytes_AS_STRING(enter)
    plan.leave = <uint64_t *>PyBytes_AS_STRING(leave)
    return enter, leave


def run_mpi(str library, uintptr_t comm, uintptr_t byte, uintptr_t real, uintptr_t sum, int n_ranks, uint64_t n,
            uint64_t warmup=0, uint64_t skew_ns=0, uint64_t seed=1, bint crowded=False, str operation="barrier",
            size_t nbytes=0):
    """Run *n* times ``MPI_Barrier``, ``MPI_Bcast`` ... of the MPI library at path *library*.

    Parameters
    ----------
    comm, byte, real, sum : int
        Handles of that library: the communicator, ``MPI_BYTE``, ``MPI_DOUBLE``, ``MPI_SUM``.
    n_ranks : int
        Number of ranks of the communicator.
    n, warmup : int
        Number of measured operations, and of operations before them that are not measured.
    skew_ns : int
        0: operations follow each other without a pause. Otherwise each rank delays each operation by a random time
        below *skew_ns*.
    seed : int
        Seed of the random times.
    crowded : bool
        Whether a rank yields its core during a delay.
    operation : str
        A key of :func:`collective_algorithms`.
    nbytes : int
        Length of the buffer in bytes; of allgather and alltoall, of the part of each rank.

    Returns
    -------
    enter, leave : bytes
        uint64 nanoseconds of CLOCK_MONOTONIC, before the first operation and after the last. With skew, before and
        after each operation.
    """
    cdef coll_measure_run_plan plan
    cdef coll_measure_work work
    cdef bytes path = library.encode()
    cdef coll_measure_mpi handles
    handles.library = path
    handles.comm, handles.byte, handles.real, handles.sum = comm, byte, real, sum
    times = _coll_plan(&plan, n, warmup, skew_ns, seed, crowded)
    buffers = _coll_work(&work, operation, nbytes, n_ranks)
    cdef int code
    with nogil:
        code = coll_measure_run_mpi(&handles, &work, &plan)
    if code:
        raise RuntimeError(f"{operation} of {library} failed with code {code}")
    return times
