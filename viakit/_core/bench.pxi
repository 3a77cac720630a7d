# The measuring loop and its endpoints (csrc/bench). viakit.measure makes connections and keeps the two sides in step;
# this file converts, checks and calls.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uint32_t, uint64_t, uintptr_t
from libc.string cimport memset

cdef extern from "Python.h":
    int _bench_check_signals "PyErr_CheckSignals"() except -1

cdef extern from "bench/bench.h" nogil:
    enum:
        BENCH_DONE
        BENCH_NOT_YET
        BENCH_ERROR
        BENCH_TIMEOUT
        BENCH_STOPPED
        BENCH_MISMATCH
        BENCH_GONE
        BENCH_ERROR_LEN
        BENCH_N_COUNTERS

    ctypedef enum bench_mode:
        BENCH_PINGPONG
        BENCH_STREAM
        BENCH_BIDIR

    ctypedef struct bench_plan:
        bench_mode mode
        int side
        size_t len
        uint64_t count
        uint64_t warmup
        uint64_t repeats
        size_t offset
        bint validate
        bint one_core
        uint32_t run_id
        double timeout_s
        double stall_s
        int control_fd
        int *stop
        int (*interrupt)(void *context) noexcept nogil
        void *interrupt_context

    ctypedef struct bench_ops:
        const char *name
        size_t min_len
        size_t max_len

    ctypedef struct bench_ep:
        const bench_ops *ops
        size_t window
        char error[512]

    ctypedef struct bench_via_options:
        const char *device
        unsigned reliability
        unsigned form
        unsigned mtu
        int spin_us
        bint polled
        unsigned retransmission
        unsigned checksum
        const char *faults

    ctypedef struct bench_bip_options:
        const char *device
        const char *job
        int side
        uint64_t small
        uint64_t packet
        unsigned form
        unsigned mtu
        unsigned retransmission
        unsigned checksum
        int spin_us
        bint polled
        const char *faults

    int bench_prepare(bench_ep *ep, const bench_plan *plan)
    int bench_run(bench_ep *ep, const bench_plan *plan, double *samples)
    void bench_counters(bench_ep *ep, uint64_t *values)
    const char *bench_counter_name(int counter)
    void bench_close(bench_ep *ep)
    double bench_ns_per_tick()
    const char *bench_clock_name()
    bench_ep *bench_null_open(char *error)
    bench_ep *bench_floor_open(int fd, int side, char *error)
    bench_ep *bench_socket_open(int fd, const char *name, bint polled, char *error)
    bench_ep *bench_udp_open(int fd, bint polled, char *error)
    bench_ep *bench_frames_open(const char *interface, bint polled, char *error)
    void bench_frames_address(bench_ep *ep, unsigned char *mac)
    void bench_frames_connect(bench_ep *ep, const unsigned char *peer)
    bench_ep *bench_zmq_open(void *socket, const char *library, bint polled, char *error)
    bench_ep *bench_mpi_open(const char *library, uintptr_t comm, uintptr_t byte_type, int peer, char *error)
    bench_ep *bench_via_open(const bench_via_options *options, char *error)
    int bench_via_address(bench_ep *ep, unsigned char *address, size_t room)
    int bench_via_accept(bench_ep *ep, const unsigned char *token, size_t token_len)
    int bench_via_connect(bench_ep *ep, const unsigned char *address, size_t address_len, const unsigned char *token,
                          size_t token_len)
    int bench_via_counters(bench_ep *ep, uint64_t *values, int n)
    const char *bench_via_counter_name(int counter)
    int bench_via_describe(bench_ep *ep, char *text, size_t room)
    bench_ep *bench_bip_open(const bench_bip_options *options, char *error)
    int bench_bip_card(bench_ep *ep, unsigned char *card, size_t room)
    int bench_bip_connect(bench_ep *ep, const unsigned char *cards, int timeout_ms)
    int bench_bip_counters(bench_ep *ep, uint64_t *values, int n)
    int bench_bip_describe(bench_ep *ep, size_t len, char *text, size_t room)

    ctypedef struct bench_msg_options:
        const char *channel
        const char *policy
        const char *network_device
        const char *address
        int fd
        int side
        bint polled
        double timeout_s

    bench_ep *bench_msg_open(const bench_msg_options *options, char *error)
    int bench_msg_counters(bench_ep *ep, uint64_t *values)
    const char *bench_msg_counter_name(int counter)
    int bench_msg_describe(bench_ep *ep, char *text, size_t room)


class BenchError(RuntimeError):
    """A measurement failed in C.

    Attributes
    ----------
    reason : str
        ``"error"``, ``"timeout"``, ``"stopped"``, ``"mismatch"`` (validation) or ``"gone"`` (the peer went away).
    """

    def __init__(self, message, reason="error"):
        super().__init__(message)
        self.reason = reason


_BENCH_REASONS = {BENCH_TIMEOUT: "timeout", BENCH_STOPPED: "stopped", BENCH_MISMATCH: "mismatch", BENCH_GONE: "gone"}
_BENCH_MODES = {"pingpong": BENCH_PINGPONG, "stream": BENCH_STREAM, "bidir": BENCH_BIDIR}


# Called by the loop about every 20 ms. An exception of a signal handler stays set and is raised when the run returns.
cdef int _bench_interrupt(void *context) noexcept nogil:
    cdef int raised
    with gil:
        raised = <object>context is not None and (<BenchEndpoint>context)._signals()
    return raised


cdef class BenchEndpoint:
    """One side of a measurement, of any protocol: prepared, run, counted and closed in the same way.

    Made by the static methods, one per protocol. Not thread-safe, except for `stop`.
    """

    cdef bench_ep *_ep
    cdef bench_plan _plan
    cdef int _stop
    cdef bint _prepared, _via, _bip, _msg
    cdef object _keep      # sockets and the like, which C uses and Python owns
    cdef object _exception  # what a signal handler raised in the middle of a run

    def __dealloc__(self):
        bench_close(self._ep)

    cdef int _signals(self):
        try:
            _bench_check_signals()
        except BaseException as error:
            self._exception = error
            return 1
        return 0

    @staticmethod
    cdef BenchEndpoint _wrap(bench_ep *ep, const char *error, object keep):
        if ep == NULL:
            raise BenchError(error.decode("utf-8", "replace"))
        cdef BenchEndpoint self = BenchEndpoint.__new__(BenchEndpoint)
        self._ep = ep
        self._keep = keep
        return self

    cdef bench_ep *_open(self) except NULL:
        if self._ep == NULL:
            raise ValueError("the endpoint is closed")
        return self._ep

    cdef object _failed(self, int code):
        if self._exception is not None:
            error, self._exception = self._exception, None
            return error
        return BenchError((<bytes>self._ep.error).decode("utf-8", "replace"), _BENCH_REASONS.get(code, "error"))

    # ---------------------------------------------------------------- making one

    @staticmethod
    def null():
        """The endpoint that does nothing: what is measured is the loop itself."""
        cdef char error[BENCH_ERROR_LEN]
        return BenchEndpoint._wrap(bench_null_open(error), error, None)

    @staticmethod
    def floor(int fd, int side):
        """A cache line each way in the memory of *fd* (at least 4096 bytes, shared with the peer); *side* 0 or 1."""
        cdef char error[BENCH_ERROR_LEN]
        return BenchEndpoint._wrap(bench_floor_open(fd, side, error), error, None)

    @staticmethod
    def socket(sock, str name, bint polled):
        """A connected stream socket (``socket.socket``), TCP or Unix."""
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes text = name.encode()
        return BenchEndpoint._wrap(bench_socket_open(sock.fileno(), text, polled, error), error, (sock, text))

    @staticmethod
    def udp(sock, bint polled):
        """A connected datagram socket (``socket.socket``)."""
        cdef char error[BENCH_ERROR_LEN]
        return BenchEndpoint._wrap(bench_udp_open(sock.fileno(), polled, error), error, sock)

    @staticmethod
    def frames(str interface, bint polled):
        """Bare Ethernet frames on *interface*, to be connected by `frames_connect`."""
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes name = interface.encode()
        return BenchEndpoint._wrap(bench_frames_open(name, polled, error), error, None)

    def frames_address(self):
        """The interface's address, 6 bytes."""
        cdef unsigned char mac[6]
        bench_frames_address(self._ep, mac)
        return bytes(mac[:6])

    def frames_connect(self, bytes peer):
        """Send to the host with address *peer*, 6 bytes, from now on."""
        if len(peer) != 6:
            raise ValueError(f"an Ethernet address has 6 bytes, not {len(peer)}")
        bench_frames_connect(self._ep, <const unsigned char *><char *>peer)

    @staticmethod
    def zmq(sock, str library, bint polled):
        """A connected PAIR socket (``zmq.Socket``) of the libzmq at path *library*."""
        cdef char error[BENCH_ERROR_LEN]
        cdef uintptr_t address = sock.underlying
        cdef bytes path = library.encode()
        return BenchEndpoint._wrap(bench_zmq_open(<void *>address, path, polled, error), error, sock)

    @staticmethod
    def mpi(str library, uintptr_t comm, uintptr_t byte_type, int peer):
        """Rank *peer* of communicator *comm*, both handles as the MPI library at path *library* has them."""
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes path = library.encode()
        return BenchEndpoint._wrap(bench_mpi_open(path, comm, byte_type, peer, error), error, None)

    @staticmethod
    def via(str device, bint polled, unsigned reliability=0, unsigned form=0, unsigned mtu=0, int spin_us=0,
            unsigned retransmission=0, unsigned checksum=0, str faults=""):
        """A VI on *device* (``"shm:NAME"``, ``"eth:IFNAME"``), to be connected by `via_accept` or `via_connect`.

        Blocking, a wait polls for *spin_us* before it sleeps; 0: not at all. *faults* is text as for ``Nic.faults``.
        """
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes name = device.encode()
        cdef bytes spoilt = faults.encode()
        cdef bench_via_options options
        cdef bench_ep *ep
        memset(&options, 0, sizeof(options))
        options.device = name
        options.polled = polled
        options.reliability = reliability
        options.form = form
        options.mtu = mtu
        options.spin_us = spin_us
        options.retransmission = retransmission
        options.checksum = checksum
        options.faults = spoilt
        with nogil:
            ep = bench_via_open(&options, error)
        cdef BenchEndpoint self = BenchEndpoint._wrap(ep, error, name)
        self._via = True
        return self

    @staticmethod
    def bip(str device, str job, int side, bint polled, uint64_t small=0, uint64_t packet=0, unsigned form=0,
            unsigned mtu=0, int spin_us=0, unsigned retransmission=0, unsigned checksum=0,
            str faults=""):
        """Rank *side* of a BIP job of two, named *job* (at most 15 characters), on *device*.

        *small* and *packet* are bytes of the longest short message and of each packet; 0: as calibrated. The rest as
        for `via`. To be connected by `bip_card` and `bip_connect`.
        """
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes name = device.encode(), word = job.encode(), spoilt = faults.encode()
        cdef bench_bip_options options
        cdef bench_ep *ep
        memset(&options, 0, sizeof(options))
        options.device = name
        options.job = word
        options.side = side
        options.small = small
        options.packet = packet
        options.form = form
        options.mtu = mtu
        options.retransmission = retransmission
        options.checksum = checksum
        options.spin_us = spin_us
        options.polled = polled
        options.faults = spoilt
        with nogil:
            ep = bench_bip_open(&options, error)
        cdef BenchEndpoint self = BenchEndpoint._wrap(ep, error, None)
        self._bip = True
        return self

    def bip_card(self):
        """What the other side needs for `bip_connect`, as bytes."""
        cdef unsigned char card[64]
        cdef int n = bench_bip_card(self._open(), card, sizeof(card))
        if n < 0:
            raise self._failed(n)
        return PyBytes_FromStringAndSize(<char *>card, n)

    def bip_connect(self, bytes cards, int timeout_ms):
        """Connect, given the cards of side 0 and of side 1 in one. False: it took too long."""
        cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(cards)
        cdef bench_ep *ep = self._open()
        cdef int code
        if len(cards) != 128:
            raise ValueError("two cards of 64 bytes are needed")
        with nogil:
            code = bench_bip_connect(ep, data, timeout_ms)
        if code < 0:
            raise self._failed(code)
        return code == BENCH_DONE

    def bip_describe(self, size_t nbytes=0):
        """What NIC and job are, and the packets of a message of *nbytes*, as a dict of strings."""
        cdef char text[2048]
        cdef int n = bench_bip_describe(self._open(), nbytes, text, sizeof(text))
        if n < 0:
            raise self._failed(n)
        lines = (<bytes>text).decode("utf-8", "replace").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    @staticmethod
    def msg(str channel, sock, int side, bint polled, str policy="", str network_device="", str address="",
            double timeout_s=30.0):
        """A rank of two that send each other messages, connected when this returns.

        Parameters
        ----------
        channel
            ``"via"``, ``"bip"`` or ``"tcp"``.
        sock
            A connected stream socket (``socket.socket``) to the other side, used only while the two open.
        side
            0 or 1: the rank.
        policy
            As ``VIAKIT_MSG``: ``"NAME"``, ``"NAME,field=value"`` or ``"field=value"``. With *polled* a wait never
            sleeps, without it sleeps at once, unless *policy* sets ``spin_us``.
        network_device
            What VIA takes between hosts: ``"eth:IFNAME"``, ``"udp:ADDRESS"``.
        address
            Of this host, for TCP.
        timeout_s
            Longest time of opening.

        Raises
        ------
        BenchError
            If the policy makes no sense for this channel, or the other side cannot be reached.
        """
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes channel_text, policy_text, device_text, address_text
        cdef bench_msg_options options
        cdef bench_ep *ep
        if side not in (0, 1):
            raise ValueError(f"side {side}: expected 0 or 1")
        if not 0 < timeout_s < 1e6:
            raise ValueError(f"timeout_s {timeout_s} must be positive")
        channel_text, policy_text = channel.encode(), policy.encode()
        device_text, address_text = network_device.encode(), address.encode()
        memset(&options, 0, sizeof(options))
        options.channel = channel_text
        options.policy = policy_text
        options.network_device = <const char *>device_text if device_text else NULL
        options.address = <const char *>address_text if address_text else NULL
        options.fd = sock.fileno()
        options.side = side
        options.polled = polled
        options.timeout_s = timeout_s
        with nogil:
            ep = bench_msg_open(&options, error)
        cdef BenchEndpoint self = BenchEndpoint._wrap(ep, error, sock)
        self._msg = True
        return self

    def msg_describe(self):
        """Policy, channel, route and every field of the policy, as a dict of strings."""
        cdef char text[2048]
        cdef int n = bench_msg_describe(self._open(), text, sizeof(text))
        return dict(line.split("=", 1) for line in (<bytes>text[:n]).decode("utf-8", "replace").splitlines())

    # ---------------------------------------------------------------- VIA's connection

    def via_address(self):
        """The NIC's host address, as bytes."""
        cdef unsigned char address[64]
        cdef int n = bench_via_address(self._open(), address, sizeof(address))
        if n < 0:
            raise self._failed(n)
        return PyBytes_FromStringAndSize(<char *>address, n)

    def via_accept(self, bytes token):
        """Wait a moment for a peer that asks for discriminator *token*. True when connected, False: call again."""
        cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(token)
        cdef size_t n = len(token)
        cdef bench_ep *ep = self._open()
        cdef int code
        with nogil:
            code = bench_via_accept(ep, data, n)
        if code < 0:
            raise self._failed(code)
        return code == BENCH_DONE

    def via_connect(self, bytes address, bytes token):
        """Ask the peer at *address* that waits for *token*. True when connected, False: not yet, call again."""
        cdef const unsigned char *host = <const unsigned char *>PyBytes_AS_STRING(address)
        cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(token)
        cdef size_t host_len = len(address), n = len(token)
        cdef bench_ep *ep = self._open()
        cdef int code
        with nogil:
            code = bench_via_connect(ep, host, host_len, data, n)
        if code < 0:
            raise self._failed(code)
        return code == BENCH_DONE

    def via_describe(self):
        """What the NIC is: link, interface, form, MTU and so on, as a dict of strings."""
        cdef char text[2048]
        cdef int n = bench_via_describe(self._open(), text, sizeof(text))
        if n < 0:
            raise self._failed(n)
        lines = (<bytes>text).decode("utf-8", "replace").splitlines()
        return dict(line.split("=", 1) for line in lines if "=" in line)

    # ---------------------------------------------------------------- measuring

    @property
    def name(self):
        """The protocol's name in the C loop."""
        return self._open().ops.name.decode()

    @property
    def limits(self):
        """Smallest and largest message, in bytes."""
        cdef bench_ep *ep = self._open()
        return ep.ops.min_len, ep.ops.max_len

    @property
    def window(self):
        """Messages under way in the prepared run before the sender waits for a credit; 0: the protocol's own affair."""
        return self._open().window

    def prepare(self, size_t nbytes, str mode, int side, uint64_t count, uint64_t warmup=1, uint64_t repeats=1,
                size_t offset=0, bint validate=False, bint one_core=False, uint32_t run_id=0, double timeout_s=60.0,
                double stall_s=10.0, int control_fd=-1):
        """Make buffers and post receives for a run. To be called on both sides before either calls `run`.

        Parameters
        ----------
        nbytes, count, warmup, repeats, offset
            Bytes of a message; messages of a repeat; unmeasured messages before; samples (stream and bidir); bytes
            between a page's start and the message.
        mode
            ``"pingpong"``, ``"stream"`` or ``"bidir"``.
        side
            0 for A, which holds the clock, 1 for B.
        control_fd
            A descriptor on which anything readable, or a hang-up, stops the run; -1: none.

        Raises
        ------
        BenchError
            If the protocol does not take this.
        """
        cdef bench_ep *ep = self._open()
        cdef int code
        if mode not in _BENCH_MODES:
            raise ValueError(f"mode {mode!r}: expected one of {', '.join(_BENCH_MODES)}")
        if side not in (0, 1):
            raise ValueError(f"side {side}: expected 0 or 1")
        if not (0 < timeout_s < 1e9 and 0 < stall_s < 1e9):
            raise ValueError(f"timeout_s {timeout_s} and stall_s {stall_s} must be positive")
        memset(&self._plan, 0, sizeof(self._plan))
        self._plan.mode = _BENCH_MODES[mode]
        self._plan.side = side
        self._plan.len = nbytes
        self._plan.count = count
        self._plan.warmup = warmup if warmup else 1
        self._plan.repeats = 1 if mode == "pingpong" else repeats
        self._plan.offset = offset
        self._plan.validate = validate
        self._plan.one_core = one_core
        self._plan.run_id = run_id
        self._plan.timeout_s = timeout_s
        self._plan.stall_s = stall_s
        self._plan.control_fd = control_fd
        self._plan.stop = &self._stop
        self._plan.interrupt = _bench_interrupt
        self._plan.interrupt_context = <void *>self
        self._stop = 0
        with nogil:
            code = bench_prepare(ep, &self._plan)
        self._prepared = code == 0
        if code:
            raise self._failed(code)

    def run(self):
        """Run what `prepare` prepared.

        Returns
        -------
        bytes
            Native doubles, nanoseconds: one-way times (ping-pong: half of each round trip) or times per message
            (stream, bidir: one per repeat). Empty on side B.

        Raises
        ------
        BenchError
            If the peer went away, data did not match, or time ran out. The endpoint is then of no further use.
        """
        cdef bench_ep *ep = self._open()
        cdef int code
        cdef double *values = NULL
        if not self._prepared:
            raise ValueError("run without prepare")
        self._prepared = False
        cdef size_t n = 0 if self._plan.side else (
            self._plan.count if self._plan.mode == BENCH_PINGPONG else self._plan.repeats)
        samples = PyBytes_FromStringAndSize(NULL, n * sizeof(double))
        if n:
            values = <double *><void *>PyBytes_AS_STRING(samples)
        with nogil:
            code = bench_run(ep, &self._plan, values)
        if code or self._exception is not None:
            raise self._failed(code)
        return samples

    def stop(self):
        """End a run that another thread is in, or that a signal handler interrupts, within some milliseconds."""
        self._stop = 1

    def counters(self):
        """Free-running counters of the endpoint and its thread, a dict; VIA adds its NIC's, messages the engine's."""
        cdef uint64_t values[256]
        cdef bench_ep *ep = self._open()
        cdef int i, n
        bench_counters(ep, values)
        result = {bench_counter_name(i).decode(): values[i] for i in range(BENCH_N_COUNTERS)}
        if self._via:
            n = min(bench_via_counters(ep, values, 256), 256)
            result.update({bench_via_counter_name(i).decode(): values[i] for i in range(n)})
        if self._bip:
            n = min(bench_bip_counters(ep, values, 256), 256)
            result.update({bench_via_counter_name(i).decode(): values[i] for i in range(n)})
        if self._msg:
            n = bench_msg_counters(ep, values)
            result.update({"msg_" + bench_msg_counter_name(i).decode(): values[i] for i in range(n)})
        return result

    def close(self):
        """Release everything; sockets and handles that were given stay their owner's. Idempotent."""
        cdef bench_ep *ep = self._ep
        self._ep = NULL
        with nogil:
            bench_close(ep)
        self._keep = None


def bench_clock():
    """The measuring clock: its name and the nanoseconds of one tick, calibrated against CLOCK_MONOTONIC_RAW."""
    cdef double ns
    with nogil:
        ns = bench_ns_per_tick()
    return bench_clock_name().decode(), ns
