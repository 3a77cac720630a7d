# BIP (csrc/bip): jobs as viakit.bip wraps them. This file converts, holds buffers, checks and calls.

cdef extern from "bip/model.h" nogil:
    ctypedef struct bip_model:
        double start
        double packet
        double byte
        double fill

    enum:
        BIP_MIN_PACKET

    uint64_t bip_equal_packets(uint64_t n, uint64_t p)
    double bip_model_time(const bip_model *model, uint64_t n, uint64_t p)
    uint64_t bip_model_best(const bip_model *model, uint64_t n, uint64_t most)
    int bip_table_path(const char *link, char *path, size_t room)

cdef extern from "bip/job.h" nogil:
    enum:
        BIP_ERR_INTERRUPTED
        BIP_ERR_TIMEOUT
        BIP_ERROR_LEN
        BIP_CARD_LEN
        BIP_N_COUNTERS

    ctypedef struct bip_job:
        pass

    ctypedef struct bip_options:
        size_t size
        int rank
        int n_ranks
        const char *job
        const char *host
        const char *local_device
        const char *network_device
        uint32_t n_slots
        uint64_t small
        uint64_t packet
        int strict
        int checksum
        int blocking
        int spin_us
        int one_core
        int mtu
        int form
        int go_back_n
        const char *faults
        int (*interrupt)(void *context) noexcept nogil
        void *interrupt_context

    const char *bip_code_name(int code)
    int bip_open(const bip_options *options, bip_job **job, char *error)
    void bip_card(const bip_job *job, uint8_t *card)
    int bip_connect(bip_job *job, const uint8_t *cards, int timeout_ms)
    int bip_close(bip_job *job, int timeout_ms)
    int bip_isend_bytes(bip_job *job, int dst, int tag, const void *buf, size_t length)
    int bip_stest_id(bip_job *job, int id)
    int bip_swait_id(bip_job *job, int id, int timeout_ms)
    int bip_irecv_bytes(bip_job *job, int tag, void *buf, size_t max_len)
    int bip_rtest_id(bip_job *job, int id, size_t *length, int *node)
    int bip_rwait_id(bip_job *job, int id, size_t *length, int *node, int timeout_ms)
    int bip_rcancel_id(bip_job *job, int id)
    int bip_getmsg(bip_job *job, int tag, const void **buf, size_t *length, int *node, int timeout_ms)
    int bip_freemsg(bip_job *job, int tag)
    int bip_taginit_bytes(bip_job *job, int tag, int n, size_t length)
    const char *bip_error(const bip_job *job)
    size_t bip_small(const bip_job *job, int dst)
    size_t bip_packet(const bip_job *job, int dst, size_t length)
    size_t bip_memory(const bip_job *job)
    void bip_counters(const bip_job *job, uint64_t *values)
    const char *bip_counter_name(int counter)


class BipError(RuntimeError):
    """BIP could not do what was asked.

    Attributes
    ----------
    name : str
        ``"ARGUMENT"``, ``"SELF"``, ``"BUSY"``, ``"TOO_LONG"``, ``"NOT_POSTED"``, ``"PEER"``, ``"LEFT"``, ``"TIMEOUT"``,
        ``"DAMAGED"`` or ``"RESOURCE"``, as in ``csrc/bip/job.h``.
    """

    def __init__(self, message, name="RESOURCE"):
        super().__init__(message)
        self.name = name


class BipArgumentError(BipError, ValueError):
    """A wrong rank, tag, length or buffer; a message to oneself; a second send, or a second receive of one tag."""


class BipTooLongError(BipError, ValueError):
    """The message is longer than its receive allows; both sides are told."""


class BipTimeoutError(BipError, TimeoutError):
    """Nothing happened in the time given. A request goes on and may be waited for again."""


class BipPeerError(BipError, ConnectionError):
    """A rank died, or it has left the job and nothing can come from it or go to it any more."""


_BIP_ERRORS = {"ARGUMENT": BipArgumentError, "SELF": BipArgumentError, "BUSY": BipArgumentError,
               "TOO_LONG": BipTooLongError, "TIMEOUT": BipTimeoutError, "PEER": BipPeerError, "LEFT": BipPeerError}


cdef object _bip_error(int code, str text):
    cdef const char *name = bip_code_name(code)
    cdef str word = "RESOURCE" if name == NULL else name.decode()
    return _BIP_ERRORS.get(word, BipError)(text, word)


cdef int _bip_interrupted(void *context) noexcept nogil:
    cdef int answer
    with gil:
        answer = _look_for_signals()
    return answer


cdef class _BipBuffer:
    # A buffer that C uses: its owner cannot resize or free it while this lives.
    cdef Py_buffer view
    cdef bint held

    def __cinit__(self, obj, bint writable):
        PyObject_GetBuffer(obj, &self.view, PyBUF_ANY_CONTIGUOUS | (PyBUF_WRITABLE if writable else 0))
        self.held = True

    def __dealloc__(self):
        if self.held:
            PyBuffer_Release(&self.view)


cdef class BipCore:
    """A job of BIP without comfort: lengths in bytes, ids for requests. Use :mod:`viakit.bip`."""

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
                  str faults=""):
        cdef bip_options options
        cdef char error[512]
        cdef bytes name = job.encode(), place = host.encode(), spoilt = faults.encode()
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
        options.checksum = checksum
        options.blocking = blocking
        options.faults = spoilt
        options.interrupt = _bip_interrupted
        self._receives = {}
        self._send_id = -1
        self._generation = _generation
        with nogil:
            code = bip_open(&options, &self._job, error)
        if code:
            self._job = NULL
            raise _bip_error(code, (<bytes>error).decode("utf-8", "replace"))
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

    # After a call: its result, or its error raised.
    cdef int _leave(self, int code) except? -1:
        self._busy = False
        if code < 0:
            _raise_signal()
            raise _bip_error(code, _text(bip_error(self._job)))
        return code

    def card(self):
        cdef uint8_t card[64]
        bip_card(self._enter(), card)
        self._leave(0)
        return PyBytes_FromStringAndSize(<char *>card, BIP_CARD_LEN)

    def connect(self, cards, timeout_s):
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
        """None when done."""
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
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_stest_id(job, id)
        if code and id == self._send_id:
            self._send_buffer = None
        return self._leave(code) == 1

    def irecv(self, int tag, buf):
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
        """(bytes, source)."""
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
        """(bytes, source), or None."""
        cdef bip_job *job = self._enter()
        cdef int code, node = -1
        cdef size_t n = 0
        with nogil:
            code = bip_rtest_id(job, id, &n, &node)
        if code:
            self._receives.pop(id, None)
        return (n, node) if self._leave(code) == 1 else None

    def rcancel(self, int id):
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_rcancel_id(job, id)
        self._leave(code)
        self._receives.pop(id, None)

    def get(self, int tag, timeout_s):
        """(data, source) of a short message, or None if there is none and timeout_s is 0."""
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
        cdef bip_job *job = self._enter()
        cdef int code
        with nogil:
            code = bip_taginit_bytes(job, tag, n, length)
        self._leave(code)

    def small(self, int dest):
        cdef size_t n = bip_small(self._enter(), dest)
        self._leave(0)
        return n

    def packet(self, int dest, size_t nbytes):
        cdef size_t n = bip_packet(self._enter(), dest, nbytes)
        self._leave(0)
        return n

    def memory(self):
        cdef size_t n = bip_memory(self._enter())
        self._leave(0)
        return n

    def counters(self):
        cdef uint64_t values[64]
        cdef int i
        bip_counters(self._enter(), values)
        self._leave(0)
        return {bip_counter_name(i).decode(): values[i] for i in range(BIP_N_COUNTERS)}

    @property
    def closed(self):
        return self._job == NULL

    def close(self, timeout_s):
        """False: what was sent last may not have arrived."""
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
    """Seconds for a message by the pipeline's model (csrc/bip/model.h)."""
    cdef bip_model model = bip_model(start, packet, byte, fill)
    return bip_model_time(&model, nbytes, packet_bytes)


def bip_best(double start, double packet, double byte, double fill, uint64_t nbytes, uint64_t most):
    """The packet size that the model holds for the best."""
    cdef bip_model model = bip_model(start, packet, byte, fill)
    return bip_model_best(&model, nbytes, most)


def bip_equal(uint64_t nbytes, uint64_t packet_bytes):
    """The size of the equal packets into which a message is cut when they are to be of about packet_bytes."""
    return bip_equal_packets(nbytes, packet_bytes)


def bip_calibration_path(str link):
    """Where the calibration of a link lies."""
    cdef char path[4096]
    cdef bytes name = link.encode()
    if bip_table_path(name, path, sizeof(path)) != 0:
        raise FileNotFoundError(2, "there is no home directory for calibrations: set XDG_CACHE_HOME or HOME", link)
    return path.decode("utf-8", "surrogateescape")
