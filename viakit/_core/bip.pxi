# BIP jobs (csrc/bip) for viakit.bip, which wraps them. This file converts and checks arguments, holds buffers, calls C.

from cbip cimport *


class BipError(RuntimeError):
    """BIP could not perform an operation.

    Attributes
    ----------
    name : str
        Error code as in ``csrc/bip/job.h``: ``"ARGUMENT"``, ``"SELF"``, ``"BUSY"``, ``"TOO_LONG"``, ``"NOT_POSTED"``,
        ``"PEER"``, ``"LEFT"``, ``"TIMEOUT"``, ``"DAMAGED"`` or ``"RESOURCE"``.
    """

    def __init__(self, message, name="RESOURCE"):
        super().__init__(message)
        self.name = name


class BipArgumentError(BipError, ValueError):
    """The rank, tag, length or buffer is invalid, or another send, or receive of the same tag, is outstanding."""


class BipTooLongError(BipError, ValueError):
    """The message is longer than its receive allows. Both sides get the error."""


class BipTimeoutError(BipError, TimeoutError):
    """The timeout expired. The request continues and may be waited for again."""


class BipPeerError(BipError, ConnectionError):
    """A rank has failed or left the job, so that messages from it or to it are not possible any more."""


_BIP_ERRORS = {"ARGUMENT": BipArgumentError, "SELF": BipArgumentError, "BUSY": BipArgumentError,
               "TOO_LONG": BipTooLongError, "TIMEOUT": BipTimeoutError, "PEER": BipPeerError, "LEFT": BipPeerError}


cdef object _bip_error(int code, str text):
    cdef const char *name = bip_code_name(code)
    cdef str word = "RESOURCE" if name == NULL else name.decode()
    return _BIP_ERRORS.get(word, BipError)(text, word)


cdef int _bip_interrupted(void *context) noexcept nogil:
    cdef int answer
    cdef long process = _generation
    with gil:
        answer = _look_for_signals()
    return answer or process != _generation  # A handler may fork; the wait ends in the child.


cdef class _BipBuffer:
    # A buffer that C uses. The owner cannot resize or free it while this object lives.
    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, obj, bint writable):
        PyObject_GetBuffer(obj, &self.view, PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class BipCore:
    """A BIP job at the level of C: lengths in bytes, ids for requests. Use :mod:`viakit.bip`."""

    cdef bip_job *_job
    cdef bint _busy
    cdef long _generation
    cdef int _send_id
    cdef object _send_buffer
    cdef dict _receives   # id: buffer
    cdef readonly int rank
    cdef readonly int size

    def __cinit__(self, int rank, int size, str job, str host, local_device, network_device, uint32_t slots=0,
                  uint64_t small=0, uint64_t packet=0, bint strict=False, bint checksum=False, bint blocking=True,
                  bint unreliable=False, str faults="", secret=None):
        cdef bip_options options
        cdef bytes proof = _job_secret(secret)
        cdef char error[512]
        cdef bytes name = job.encode(), place = host.encode(), fault_text = faults.encode()
        cdef bytes local = b"" if local_device is None else local_device.encode()
        cdef bytes network = b"" if network_device is None else network_device.encode()
        cdef int code
        memset(&options, 0, sizeof(options))
        options.size = sizeof(options)
        options.rank = rank
        options.n_ranks = size
        options.job = name
        options.host = place
        options.local_device = NULL if local_device is None else <const char *>local
        options.network_device = NULL if network_device is None else <const char *>network
        options.n_slots = slots
        options.small = small
        options.packet = packet
        options.strict = strict
        options.unreliable = unreliable
        options.checksum = checksum
        options.blocking = blocking
        options.faults = fault_text
        options.interrupt = _bip_interrupted
        if proof is not None:
            options.secret = <const unsigned char *>PyBytes_AS_STRING(proof)
        self._receives = {}
        self._send_id = -1
        self._generation = _generation
        with nogil:
            code = bip_open(&options, &self._job, error)
        if code:
            self._job = NULL
            raise _bip_error(code, _text(error))
        self.rank = rank
        self.size = size

    def __dealloc__(self):
        if self._job != NULL and self._generation == _generation:
            with nogil:
                bip_close(self._job, 0)

    cdef bip_job *_enter(self) except NULL:
        if self._generation != _generation:
            raise _refuse_fork(self)
        if self._job == NULL:
            raise ValueError("the job is closed")
        if self._busy:
            raise RuntimeError("another thread is in a call of this job: a job is used by one thread at a time")
        self._busy = True
        return self._job

    cdef int _leave(self, int code) except? -1:
        """End a call: return its result, or raise its error."""
        self._busy = False
        if code < 0:
            _raise_signal()
            if self._generation != _generation:
                raise _refuse_fork(self)
            raise _bip_error(code, _text(bip_error(self._job)))
        return code

    def card(self):
        """Return the card of this rank: bytes that every rank passes to `connect`."""
        cdef uint8_t card[64]
        bip_card(self._enter(), card)
        self._leave(0)
        return PyBytes_FromStringAndSize(<char *>card, BIP_CARD_LEN)

    def connect(self, cards, timeout_s):
        """Connect to all ranks, given their cards in the order of ranks."""
        cdef bytes all_cards = b"".join(cards)
        cdef const uint8_t *data = <const uint8_t *>PyBytes_AS_STRING(all_cards)
        cdef int code, ms
        cdef bip_job *job
        if len(all_cards) != self.size * BIP_CARD_LEN:
            raise ValueError(f"{self.size} cards of {BIP_CARD_LEN} bytes are needed, one for each rank")
        ms = _bip_ms(timeout_s)
        job = self._enter()
        with nogil:
            code = bip_connect(job, data, ms)
        self._leave(code)

    def isend(self, int dest, int tag, buf):
        """Start a send and return its id. *buf* is held until the send is complete; None is an empty message."""
        cdef _BipBuffer held = None if buf is None else _BipBuffer(buf, False)
        cdef const void *data = NULL if held is None else held.view.buf
        cdef size_t n = 0 if held is None else held.view.len
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_isend_bytes(job, dest, tag, data, n)
        self._leave(code)
        self._send_id = code
        self._send_buffer = held
        return code

    def swait(self, int id, timeout_s):
        """Wait for a send. Return None when it is complete."""
        cdef int code, ms
        cdef int64_t end = _deadline_ns(timeout_s)
        cdef bip_job *job = self._enter()
        ms = _bip_left(end)
        with nogil:
            code = bip_swait_id(job, id, ms)
        if id == self._send_id and code != BIP_ERR_TIMEOUT and code != BIP_ERR_INTERRUPTED:
            self._send_buffer = None
        self._leave(code)

    def stest(self, int id):
        """Return whether a send is complete."""
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_stest_id(job, id)
        if code and id == self._send_id:
            self._send_buffer = None
        return self._leave(code) == 1

    def irecv(self, int tag, buf):
        """Post a receive and return its id. *buf* is held until the receive is complete; None has no bytes."""
        cdef _BipBuffer held = None if buf is None else _BipBuffer(buf, True)
        cdef void *data = NULL if held is None else held.view.buf
        cdef size_t n = 0 if held is None else held.view.len
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_irecv_bytes(job, tag, data, n)
        self._leave(code)
        self._receives[code] = held
        return code

    def rwait(self, int id, timeout_s):
        """Wait for a receive. Return its length in bytes and its source."""
        cdef int code, ms, node = -1
        cdef size_t n = 0
        cdef int64_t end = _deadline_ns(timeout_s)
        cdef bip_job *job = self._enter()
        ms = _bip_left(end)
        with nogil:
            code = bip_rwait_id(job, id, &n, &node, ms)
        if code != BIP_ERR_TIMEOUT and code != BIP_ERR_INTERRUPTED:
            self._receives.pop(id, None)
        self._leave(code)
        return n, node

    def rtest(self, int id):
        """Test a receive. Return its length in bytes and its source, or None if it is pending."""
        cdef bip_job *job = self._enter()
        cdef int code, node = -1
        cdef size_t n = 0
        with nogil:
            code = bip_rtest_id(job, id, &n, &node)
        if code:
            self._receives.pop(id, None)
        return (n, node) if self._leave(code) == 1 else None

    def rcancel(self, int id):
        """Withdraw a receive. Raise BipError (BUSY) if its data is already arriving."""
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_rcancel_id(job, id)
        self._leave(code)
        self._receives.pop(id, None)

    def get(self, int tag, timeout_s):
        """Return data and source of a short message, or None if *timeout_s* is 0 and no message has arrived."""
        cdef int code, ms, node = -1
        cdef size_t n = 0
        cdef const void *data = NULL
        cdef int64_t end = _deadline_ns(timeout_s)
        cdef bip_job *job = self._enter()
        ms = _bip_left(end)
        with nogil:
            code = bip_getmsg(job, tag, &data, &n, &node, ms)
        if self._leave(code) == 0:
            return None
        found = PyBytes_FromStringAndSize(<const char *>data, n)
        bip_freemsg(self._job, tag)
        return found, node

    def taginit(self, int tag, int n, size_t length):
        """Create a separate queue for a tag: *n* messages of *length* bytes. A queue can only grow."""
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_taginit_bytes(job, tag, n, length)
        self._leave(code)

    def small(self, int dest):
        """Return the length in bytes of the longest short message to rank *dest*."""
        cdef size_t n = bip_small(self._enter(), dest)
        self._leave(0)
        return n

    def packet(self, int dest, size_t nbytes):
        """Return the packet size in bytes of a message of *nbytes* to rank *dest*."""
        cdef size_t n = bip_packet(self._enter(), dest, nbytes)
        self._leave(0)
        return n

    def memory(self):
        """Return the bytes of all queues and buffers."""
        cdef size_t n = bip_memory(self._enter())
        self._leave(0)
        return n

    def counters(self):
        """Return the counters of the job by name."""
        cdef uint64_t values[64]
        cdef int i
        bip_counters(self._enter(), values)
        self._leave(0)
        return {bip_counter_name(i).decode(): values[i] for i in range(BIP_N_COUNTERS)}

    @property
    def closed(self):
        """Whether `close` was called."""
        return self._job == NULL

    def close(self, timeout_s):
        """Close the job. Return False if the last messages sent may not have arrived."""
        cdef int code, ms
        cdef bip_job *job
        if self._job == NULL or self._generation != _generation:
            return True
        ms = _bip_ms(timeout_s)
        job = self._enter()
        self._job = NULL
        with nogil:
            code = bip_close(job, ms)
        self._busy = False
        self._receives = {}
        self._send_buffer = None
        _raise_signal()
        return code == 0


cdef int _bip_ms(object timeout_s) except -2:
    return _bip_left(_deadline_ns(timeout_s))


cdef int _bip_left(int64_t end) noexcept nogil:
    cdef VIP_ULONG ms = _remaining_ms(end)
    return -1 if ms == VIP_INFINITE else <int>ms


def bip_time(double start, double packet, double byte, double fill, uint64_t nbytes, uint64_t packet_bytes):
    """Return the seconds that a message takes by the pipeline's model (csrc/bip/model.h)."""
    cdef bip_model model = bip_model(start, packet, byte, fill)
    return bip_model_time(&model, nbytes, packet_bytes)


def bip_best(double start, double packet, double byte, double fill, uint64_t nbytes, uint64_t most):
    """Return the packet size that minimises the model's time."""
    cdef bip_model model = bip_model(start, packet, byte, fill)
    return bip_model_best(&model, nbytes, most)


def bip_equal(uint64_t nbytes, uint64_t packet_bytes):
    """Return the size of equal packets of about *packet_bytes* into which a message is cut."""
    return bip_equal_packets(nbytes, packet_bytes)


def bip_calibration_path(str link):
    """Return the path of a link's calibration."""
    cdef char path[4096]
    cdef bytes name = link.encode()
    if bip_table_path(name, path, sizeof(path)) != 0:
        raise FileNotFoundError(2, "no home directory was found for calibrations: set XDG_CACHE_HOME or HOME", link)
    return path.decode("utf-8", "surrogateescape")
