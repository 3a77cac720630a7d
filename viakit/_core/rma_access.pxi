# The short paths of MPI's calls on windows: Put, Get and Flush of contiguous data.
#
# Each checks what it needs and leaves everything else, errors included, to the general path in viakit.comm.win_access.

from cpython.list cimport PyList_GET_SIZE


cdef class RmaEpochs:
    """The epochs of this rank in a window, as the short paths check them."""

    cdef public bint fence
    cdef public dict locked                 # by rank: False if the lock was not requested (MODE_NOCHECK)
    cdef public object all_locked           # of Lock_all: True if the locks were requested; None: no such epoch
    cdef public object started, posted      # ranks, or None

    def __cinit__(self):
        self.locked = {}

    @cython.final
    cdef inline bint _holds(self, int rank) except -1:
        """Return whether this rank holds a lock of the rank."""
        return self.all_locked is not None or rank in self.locked

    @cython.final
    cdef inline bint _allows(self, int rank) except -1:
        """Return whether this rank may access the rank."""
        return self.fence or self._holds(rank) or (self.started is not None and rank in self.started)


cdef class RmaState:
    """Part of the state of a window that its handles share."""

    cdef public RmaWindow core              # None: freed
    cdef public RmaEpochs epochs
    cdef list _list_of_units
    cdef uint64_t *_units                   # the same in C
    cdef int _n_units

    def __dealloc__(self):
        free(self._units)

    @property
    def units(self):
        """Units of displacements in bytes, by rank."""
        return self._list_of_units

    @units.setter
    def units(self, list units not None):
        cdef int i, n = <int>len(units)
        cdef uint64_t *made = <uint64_t *>calloc(n + 1, sizeof(uint64_t))
        if made == NULL:
            raise MemoryError()
        try:
            for i in range(n):
                made[i] = units[i]
        except BaseException:
            free(made)
            raise
        free(self._units)
        self._list_of_units, self._units, self._n_units = units, made, n

    @cython.final
    cdef bint _place(self, int rank, object target, Py_ssize_t nbytes, uint64_t *offset) except -1:
        """Find where contiguous bytes go. Returns 0 if the general path has to interpret or refuse the arguments."""
        cdef Py_ssize_t displacement = 0
        first = target
        if self.core is None or not 0 <= rank < self._n_units or not self.epochs._allows(rank):
            return 0
        if PyList_CheckExact(target) or PyTuple_CheckExact(target):
            if PySequence_Fast_GET_SIZE(target) != 3:
                return 0
            first, number, kind = _item(target, 0), _item(target, 1), _item(target, 2)
            if not _is_datatype(kind) or not PyLong_CheckExact(number):
                return 0
            if (<MsgType>kind).plain == 0 or viakit_place(number, (<MsgType>kind).plain) != nbytes:
                return 0
        if first is not None:
            if not PyLong_CheckExact(first):
                return 0
            displacement = first
        if displacement < 0:
            return 0
        offset[0] = <uint64_t>displacement * self._units[rank]
        return 1


cdef class RmaAccess(MemoryOwner):
    """The calls of ``MPI.Win`` whose overhead matters. Their general forms are in :mod:`viakit.comm.win_access`."""

    cdef public RmaState _ref               # None: a null handle

    @cython.final
    cdef bint _move(self, object origin, object target_rank, object target, bint put) except -1:
        """Put or get contiguous bytes. Returns 0 if the general path has to interpret or refuse the arguments.

        The GIL is kept for a put that an RDMA write of a few bytes performs at once.
        """
        cdef Py_buffer view
        cdef uint64_t offset = 0
        cdef rma_op *op = NULL
        cdef int code = MSG_PENDING, rank
        cdef RmaState state = self._ref
        cdef RmaWindow core
        if state is None or not PyLong_CheckExact(target_rank):
            return 0
        rank = target_rank
        if not _is_message(origin, &view, 0 if put else PyBUF_WRITABLE):
            return 0
        try:
            if not state._place(rank, target, view.len, &offset):
                return 0
            core = state.core
            core._open()
            if put:
                code = rma_put_now(core._win, view.buf, view.len, rank, offset)
            if code == MSG_SUCCESS:
                return 1
            core.service.world._n_calls += 1
            with nogil:
                if put:
                    code = rma_put(core._win, view.buf, view.len, rank, offset, &op)
                else:
                    code = rma_get(core._win, view.buf, view.len, rank, offset, &op)
            core._done(MSG_SUCCESS if code == MSG_ERR_ARG else code)
            if op != NULL:
                single = origin[0] if PyList_CheckExact(origin) or PyTuple_CheckExact(origin) else origin
                core._pend(op, rank, memoryview(single))
        finally:
            PyBuffer_Release(&view)
        return code != MSG_ERR_ARG  # outside of the window: the general path explains it

    def Put(self, origin, target_rank, target=None):
        """Write data into a rank's part of the window.

        The call does not wait for the target. `origin` may be changed after the next synchronisation.

        Parameters
        ----------
        origin : buffer or list
            The data.
        target_rank : int
            Rank in the window, or PROC_NULL.
        target : int or sequence, optional
            Displacement in the target's units, or (displacement, count, datatype). Default: displacement 0, count
            and datatype of `origin`.

        Raises
        ------
        Exception
            ERR_RANK, ERR_RMA_RANGE, ERR_TRUNCATE for wrong arguments. ERR_RMA_SYNC outside of an epoch.
            ERR_PROC_FAILED if the target has died.
        """
        if not self._move(origin, target_rank, target, True):
            self._put_any(origin, target_rank, target)

    def Get(self, origin, target_rank, target=None):
        """Read data from a rank's part of the window. `origin` has it after the next synchronisation.

        Parameters
        ----------
        origin : buffer or list
            Memory for the data.
        target_rank, target
            As in `Put`.
        """
        if not self._move(origin, target_rank, target, False):
            self._get_any(origin, target_rank, target)

    def Flush(self, rank):
        """Wait until all operations of this rank on the target are complete at both ranks."""
        cdef RmaState state = self._ref
        cdef RmaWindow core
        cdef int code, target
        if state is None or not PyLong_CheckExact(rank):
            self._flush_any(rank)
            return
        target, core = rank, state.core
        if (core is None or PyList_GET_SIZE(core.pending) or not 0 <= target < state._n_units
                or not state.epochs._holds(target)):
            self._flush_any(rank)
            return
        core._open()
        code = rma_flush_now(core._win, target)  # the GIL is kept if all operations are complete
        if code == MSG_SUCCESS:
            return
        core.service.world._n_calls += 1
        with nogil:
            code = rma_flush(core._win, target)
        try:
            core._done(code)
        except Exception as problem:
            raise state.explained(problem) from None
