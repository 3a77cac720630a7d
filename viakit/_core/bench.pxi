# The measuring loop and its endpoints (csrc/bench). viakit.measure connects the two sides and keeps them in step. This
# file converts and checks arguments and calls C.

from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport uintptr_t

from cbench cimport *


class BenchError(RuntimeError):
    """A measurement failed in C.

    Attributes
    ----------
    reason : str
        ``"error"``, ``"timeout"``, ``"stopped"``, ``"mismatch"`` (validation) or ``"gone"`` (the peer disconnected).
    """

    def __init__(self, message, reason="error"):
        super().__init__(message)
        self.reason = reason


_BENCH_REASONS = {BENCH_TIMEOUT: "timeout", BENCH_STOPPED: "stopped", BENCH_MISMATCH: "mismatch", BENCH_GONE: "gone"}
_BENCH_MODES = {"pingpong": BENCH_PINGPONG, "stream": BENCH_STREAM, "bidir": BENCH_BIDIR, "overlap": BENCH_PINGPONG}
_BENCH_MEMORIES = {"user": BENCH_MEMORY_USER, "viakit": BENCH_MEMORY_VIAKIT}
_BENCH_BUFFERS = {"same": BENCH_SAME, "touched": BENCH_TOUCHED, "cold": BENCH_COLD}


# The loop calls this about every 20 ms. An exception of a signal handler is stored and raised when the run returns.
cdef int _bench_interrupt(void *context) noexcept nogil:
    cdef int ends
    with gil:
        ends = _look_for_signals()
    return ends


cdef class BenchEndpoint:
    """One side of a measurement, with the same calls for all protocols: prepare, run, counters, close.

    The static methods, one per protocol, create endpoints. Only `stop` may be called from another thread.
    """

    cdef bench_ep *_ep
    cdef bench_plan _plan
    cdef int _stop
    cdef bint _prepared, _via, _bip, _msg
    cdef object _keep   # objects that C uses and Python owns, such as sockets
    cdef long _generation

    def __cinit__(self):
        self._generation = _generation

    def __dealloc__(self):
        if self._generation == _generation:  # in a child of fork the endpoint is the parent's
            bench_close(self._ep)

    @staticmethod
    cdef BenchEndpoint _wrap(bench_ep *ep, const char *error, object keep):
        if ep == NULL:
            raise BenchError(_text(error))
        cdef BenchEndpoint self = BenchEndpoint.__new__(BenchEndpoint)
        self._ep = ep
        self._keep = keep
        return self

    cdef bench_ep *_open(self) except NULL:
        if self._ep == NULL:
            raise ValueError("the endpoint is closed")
        return self._ep

    cdef object _failed(self, int code):
        return BenchError(_text(self._ep.error), _BENCH_REASONS.get(code, "error"))

    cdef bint _connected(self, int code) except -1:
        if code < 0:
            raise self._failed(code)
        return code == BENCH_DONE

    cdef dict _described(self, const char *text, int code):
        """Convert lines of NAME=VALUE to a dict, unless *code* is an error."""
        if code < 0:
            raise self._failed(code)
        return dict(line.split("=", 1) for line in _text(text).splitlines() if "=" in line)

    # ---------------------------------------------------------------- creation

    @staticmethod
    def open(str name, bint polled=True, int side=0, int fd=-1, str device="", keep=None, bint rdma_write=False,
             int64_t buffer=0):
        """Create endpoint *name* of csrc/bench/ep_NAME.c.

        Parameters
        ----------
        name
            ``"null"`` does nothing. ``"floor"`` passes a cache line each way in the memory of *fd*, at least 4096
            bytes. ``"socket"`` and ``"udp"`` use the connected socket *keep* (``socket.socket``). ``"frames"`` sends
            bare Ethernet frames on an interface, ``"verbs"`` messages of an RDMA card; `join` connects these two.
        side
            0 or 1.
        device
            Interface, RDMA device, the name of a stream socket's protocol, or ``"sim:NAME"``: a stream on that machine.
        keep
            Object that the endpoint uses. Its descriptor is the default for *fd*.
        rdma_write
            For ``"verbs"``: messages are RDMA writes with immediate data, and not sends.
        buffer
            Bytes of a stream's socket buffers; 0: the machine's.
        """
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes text = name.encode(), where = device.encode()
        fd = keep.fileno() if keep is not None and fd < 0 else fd
        cdef bench_options options = bench_options(fd=fd, side=side, polled=polled, rdma_write=rdma_write, device=where,
                                                   buffer=buffer)
        return BenchEndpoint._wrap(bench_open(text, &options, error), error, (keep, where))

    def address(self):
        """Return the bytes that the other side needs for :meth:`join`: of frames, the interface's address."""
        cdef unsigned char address[BENCH_ADDRESS_LEN]
        cdef int n = bench_address(self._open(), address, BENCH_ADDRESS_LEN)
        if n < 0:
            raise self._failed(n)
        return address[:n]

    def join(self, bytes peer):
        """Connect to the other side, whose address that is."""
        cdef bench_ep *ep = self._open()
        cdef const unsigned char *address = <const unsigned char *><char *>peer
        cdef size_t n = len(peer)
        cdef int code
        with nogil:
            code = bench_join(ep, address, n)
        if code < 0:
            raise self._failed(code)

    @staticmethod
    def zmq(sock, str library, bint polled):
        """Create an endpoint of a connected PAIR socket (``zmq.Socket``) of the libzmq at path *library*."""
        cdef char error[BENCH_ERROR_LEN]
        cdef uintptr_t address = sock.underlying
        cdef bytes path = library.encode()
        return BenchEndpoint._wrap(bench_zmq_open(<void *>address, path, polled, error), error, sock)

    @staticmethod
    def mpi(str library, uintptr_t comm, uintptr_t byte_type, int peer):
        """Create an endpoint to rank *peer* of *comm*. Both handles are those of the MPI library at path *library*."""
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes path = library.encode()
        return BenchEndpoint._wrap(bench_mpi_open(path, comm, byte_type, peer, error), error, None)

    @staticmethod
    def lam(str library, bint polled):
        """Initialise LAM, and create an endpoint: B's `join` has no address, and accepts. It cannot be interrupted."""
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes path = library.encode()
        cdef const char *name = path
        cdef bench_ep *ep
        with nogil:
            ep = bench_lam_open(name, polled, error)
        return BenchEndpoint._wrap(ep, error, None)

    @staticmethod
    def pvm(str library, int peer, bint in_place, bint polled):
        """Create an endpoint to the task *peer* of PVM. This process is enrolled by the library at path *library*."""
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes path = library.encode()
        return BenchEndpoint._wrap(bench_pvm_open(path, peer, in_place, polled, error), error, None)

    @staticmethod
    def via(str device, bint polled, unsigned reliability=0, unsigned form=0, unsigned mtu=0, int spin_us=0,
            unsigned retransmission=0, unsigned checksum=0, str faults="", secret=None, bint rdma_write=False):
        """Create a VI on *device* (``"shm:NAME"``, ``"eth:IFNAME"``). `via_accept` or `via_connect` connects it.

        A blocking wait polls for *spin_us* microseconds before it sleeps; 0: it sleeps at once. *faults* is text as for
        ``Nic.faults``. *secret* is 32 bytes that both sides share and no other process has; without it any VI may
        connect. With *rdma_write* messages are RDMA writes with immediate data.
        """
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes name = device.encode(), fault_text = faults.encode(), proof = _job_secret(secret)
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
        options.faults = fault_text
        options.rdma_write = rdma_write
        if proof is not None:
            options.secret = <const unsigned char *>PyBytes_AS_STRING(proof)
        with nogil:
            ep = bench_via_open(&options, error)
        cdef BenchEndpoint self = BenchEndpoint._wrap(ep, error, name)
        self._via = True
        return self

    @staticmethod
    def bip(str device, str job, int side, bint polled, uint64_t small=0, uint64_t packet=0, unsigned form=0,
            unsigned mtu=0, int spin_us=0, unsigned retransmission=0, unsigned checksum=0, bint unreliable=False,
            str faults="", secret=None):
        """Create rank *side* of a BIP job of two on *device*. The job's name *job* has at most 15 characters.

        *secret* is 32 bytes that both sides share and no other process has. *small* is the length in bytes of the
        longest short message, *packet* that of each packet; 0: the calibrated values. If *unreliable*, lost messages
        are detected and not repaired. The other parameters are those of `via`. `bip_card` and `bip_connect` connect the
        endpoint.
        """
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes name = device.encode(), word = job.encode(), fault_text = faults.encode()
        cdef bytes proof = _job_secret(secret)
        cdef bench_bip_options options
        cdef bench_ep *ep
        memset(&options, 0, sizeof(options))
        options.device = name
        options.job = word
        options.side = side
        options.small = small
        options.packet = packet
        options.unreliable = unreliable
        options.form = form
        options.mtu = mtu
        options.retransmission = retransmission
        options.checksum = checksum
        options.spin_us = spin_us
        options.polled = polled
        options.faults = fault_text
        if proof is not None:
            options.secret = <const unsigned char *>PyBytes_AS_STRING(proof)
        with nogil:
            ep = bench_bip_open(&options, error)
        cdef BenchEndpoint self = BenchEndpoint._wrap(ep, error, None)
        self._bip = True
        return self

    def bip_card(self):
        """Return the card of this side, bytes that both sides pass to `bip_connect`."""
        cdef unsigned char card[64]
        cdef int n = bench_bip_card(self._open(), card, sizeof(card))
        if n < 0:
            raise self._failed(n)
        return PyBytes_FromStringAndSize(<char *>card, n)

    def bip_connect(self, bytes cards, int timeout_ms):
        """Connect, given the cards of side 0 and side 1 one after the other. Return False if the timeout expired."""
        cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(cards)
        cdef bench_ep *ep = self._open()
        cdef int code
        if len(cards) != 128:
            raise ValueError("two cards of 64 bytes are needed")
        with nogil:
            code = bench_bip_connect(ep, data, timeout_ms)
        return self._connected(code)

    def bip_describe(self, size_t nbytes=0):
        """Return the properties of NIC and job, and the packets of a message of *nbytes*, as a dict of strings."""
        cdef char text[2048]
        cdef int n = bench_bip_describe(self._open(), nbytes, text, sizeof(text))
        return self._described(text, n)

    @staticmethod
    def msg(str channel, sock, int side, bint polled, str policy="", str network_device="", str address="",
            double timeout_s=30.0, secret=None):
        """A rank of two that send each other messages, connected when this returns.

        Parameters
        ----------
        channel
            ``"via"``, ``"bip"`` or ``"tcp"``.
        sock
            A connected stream socket (``socket.socket``) to the other side, used only during the connection.
        side
            0 or 1: the rank.
        policy
            As ``VIAKIT_MSG``: ``"NAME"``, ``"NAME,field=value"`` or ``"field=value"``. With *polled* a wait never
            sleeps. Without it a wait sleeps at once. A ``spin_us`` in *policy* overrides both.
        network_device
            Device of VIA between hosts: ``"eth:IFNAME"``, ``"udp:ADDRESS"``.
        address
            Address of this host, for TCP.
        timeout_s
            Longest time of opening.
        secret
            32 bytes that both sides share and no other process has. Required.

        Raises
        ------
        BenchError
            If the policy is not valid for this channel, or the other side cannot be reached.
        """
        cdef char error[BENCH_ERROR_LEN]
        cdef bytes channel_text, policy_text, device_text, address_text, proof
        cdef bench_msg_options options
        cdef bench_ep *ep
        if side not in (0, 1):
            raise ValueError(f"side {side}: expected 0 or 1")
        if not 0 < timeout_s < 1e6:
            raise ValueError(f"timeout_s {timeout_s} must be positive")
        if secret is None:
            raise ValueError("messages between two sides need a secret of 32 bytes that only they have, got None")
        proof = _job_secret(secret)
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
        options.secret = <const unsigned char *>PyBytes_AS_STRING(proof)
        with nogil:
            ep = bench_msg_open(&options, error)
        cdef BenchEndpoint self = BenchEndpoint._wrap(ep, error, sock)
        self._msg = True
        return self

    def msg_describe(self):
        """Return policy, channel, route and every field of the policy, as a dict of strings."""
        cdef char text[2048]
        cdef int n = bench_msg_describe(self._open(), text, sizeof(text))
        return self._described(text, n)

    # ---------------------------------------------------------------- VIA's connection

    def via_address(self):
        """Return the NIC's host address, as bytes."""
        cdef unsigned char address[64]
        cdef int n = bench_via_address(self._open(), address, sizeof(address))
        if n < 0:
            raise self._failed(n)
        return PyBytes_FromStringAndSize(<char *>address, n)

    def via_accept(self, bytes token):
        """Wait briefly for a peer that requests discriminator *token*. Return True when connected."""
        cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(token)
        cdef size_t n = len(token)
        cdef bench_ep *ep = self._open()
        cdef int code
        with nogil:
            code = bench_via_accept(ep, data, n)
        return self._connected(code)

    def via_connect(self, bytes address, bytes token):
        """Request a connection to the peer at *address* that accepts *token*. Return whether it is connected."""
        cdef const unsigned char *host = <const unsigned char *>PyBytes_AS_STRING(address)
        cdef const unsigned char *data = <const unsigned char *>PyBytes_AS_STRING(token)
        cdef size_t host_len = len(address), n = len(token)
        cdef bench_ep *ep = self._open()
        cdef int code
        with nogil:
            code = bench_via_connect(ep, host, host_len, data, n)
        return self._connected(code)

    def via_describe(self):
        """Return the properties of the NIC as a dict of strings: link, interface, form, MTU and so on."""
        cdef char text[2048]
        cdef int n = bench_via_describe(self._open(), text, sizeof(text))
        return self._described(text, n)

    # ---------------------------------------------------------------- measuring

    @property
    def name(self):
        """Name of the protocol in the C loop."""
        return self._open().ops.name.decode()

    @property
    def limits(self):
        """Length of the smallest and of the largest message, in bytes."""
        cdef bench_ep *ep = self._open()
        return ep.ops.min_len, ep.ops.max_len

    @property
    def window(self):
        """Messages in flight before the sender of the prepared run waits for a credit; 0: the protocol has its own."""
        return self._open().window

    def prepare(self, size_t nbytes, str mode, int side, uint64_t count, uint64_t warmup=1, uint64_t repeats=1,
                size_t offset=0, bint validate=False, bint one_core=False, uint32_t run_id=0, double timeout_s=60.0,
                double stall_s=10.0, int control_fd=-1, str memory="user", str buffers="touched", size_t pool=0,
                unsigned spin_us=0):
        """Allocate buffers and post receives for a run. Both sides call this before either calls `run`.

        Parameters
        ----------
        nbytes
            Length of a message in bytes.
        count, warmup
            Messages of a repeat, and unmeasured messages before the first one.
        repeats
            Samples (stream and bidir).
        offset
            Bytes between the start of a page and the message.
        mode
            ``"pingpong"``, ``"stream"``, ``"bidir"`` or ``"overlap"``: ping-pong in which side A computes between send
            and receive of every second round trip, for as long as the one before took.
        side
            0 for A, which has the clock, 1 for B.
        control_fd
            A file descriptor. Data to read on it, or a hang-up, stops the run; -1: none.
        memory
            ``"user"``: ordinary memory; ``"viakit"``: memory of the protocol's own allocator.
        buffers
            ``"touched"``: the loop writes each message before it is sent and reads each that is received.
            ``"same"``: one buffer, never touched. ``"cold"``: the buffers of a pool of *pool* bytes for each
            direction in turns, not touched.
        spin_us
            A blocking wait of a socket polls for this time before it sleeps.

        Raises
        ------
        BenchError
            If the protocol does not support the plan.
        """
        cdef bench_ep *ep = self._open()
        cdef int code
        if side not in (0, 1):
            raise ValueError(f"side {side}: expected 0 or 1")
        for what, given, choices in (("mode", mode, _BENCH_MODES), ("memory", memory, _BENCH_MEMORIES),
                                     ("buffers", buffers, _BENCH_BUFFERS)):
            if given not in choices:
                raise ValueError(f"{what} {given!r}: expected one of {', '.join(choices)}")
        if not (0 < timeout_s < 1e9 and 0 < stall_s < 1e9):
            raise ValueError(f"timeout_s {timeout_s} and stall_s {stall_s} must be positive")
        memset(&self._plan, 0, sizeof(self._plan))
        self._plan.mode = _BENCH_MODES[mode]
        self._plan.side = side
        self._plan.len = nbytes
        self._plan.count = count
        self._plan.warmup = warmup if warmup else 1
        self._plan.repeats = repeats if mode in ("stream", "bidir") else 1
        self._plan.computes = mode == "overlap"
        self._plan.offset = offset
        self._plan.memory = _BENCH_MEMORIES[memory]
        self._plan.buffers = _BENCH_BUFFERS[buffers]
        self._plan.pool = pool
        self._plan.spin_ns = spin_us * <uint64_t>1000
        self._plan.validate = validate
        self._plan.one_core = one_core
        self._plan.run_id = run_id
        self._plan.timeout_s = timeout_s
        self._plan.stall_s = stall_s
        self._plan.control_fd = control_fd
        self._plan.stop = &self._stop
        self._plan.interrupt = _bench_interrupt
        self._stop = 0
        with nogil:
            code = bench_prepare(ep, &self._plan)
        self._prepared = code == 0
        _raise_signal()
        if code:
            raise self._failed(code)

    def run(self):
        """Perform the prepared run.

        Returns
        -------
        bytes
            Native doubles in nanoseconds: one-way times (ping-pong: half of each round trip) or times per message
            (stream, bidir: one per repeat). Overlap: as ping-pong, without the computing. Empty on side B.

        Raises
        ------
        BenchError
            If the peer disconnected, data did not match, or the timeout expired. The endpoint cannot be used again.
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
        _raise_signal()
        if code:
            raise self._failed(code)
        return samples

    def touch_ns(self):
        """Return the nanoseconds to write and read one message in the buffers of the last run, without sending."""
        cdef bench_ep *ep = self._open()
        cdef double ns
        if not self._plan.count:
            raise ValueError("touch_ns without prepare")
        with nogil:
            ns = bench_touch_ns(ep, &self._plan)
        return ns

    def stop(self):
        """End a run of another thread, or one that the current signal handler interrupted, within some milliseconds."""
        self._stop = 1

    def counters(self):
        """Return the free-running counters of the endpoint, its thread, and its NIC or engine, as a dict."""
        cdef uint64_t values[256]
        cdef bench_ep *ep = self._open()
        cdef int i, n
        bench_counters(ep, values)
        result = {bench_counter_name(i).decode(): values[i] for i in range(BENCH_N_COUNTERS)}
        if self._via or self._bip:
            n = min((bench_via_counters if self._via else bench_bip_counters)(ep, values, 256), 256)
            result.update({viakit_counter_name(i).decode(): values[i] for i in range(n)})
        if self._msg:
            n = bench_msg_counters(ep, values)
            result.update({"msg_" + msg_counter_name(i).decode(): values[i] for i in range(n)})
        return result

    def close(self):
        """Release the endpoint. Sockets and handles passed to it remain their owner's. Idempotent."""
        cdef bench_ep *ep = self._ep
        self._ep = NULL
        if self._generation == _generation:
            with nogil:
                bench_close(ep)
        self._keep = None


def bench_write(unsigned char[::1] message not None, uint64_t value):
    """Write every byte of *message*: *value* in each word of 8 bytes."""
    if message.shape[0]:
        bench_content_write(&message[0], message.shape[0], value)


def bench_sum(const unsigned char[::1] message not None):
    """Read every byte of *message* and return the sum of its words, modulo 2**64."""
    return bench_content_sum(&message[0], message.shape[0]) if message.shape[0] else 0


def bench_sum_of(size_t nbytes, uint64_t value):
    """Return the sum of a message of *nbytes* bytes that `bench_write` wrote with *value*."""
    return bench_content_sum_of(nbytes, value)


def bench_clock():
    """Return the name of the measuring clock and the nanoseconds per tick, calibrated with CLOCK_MONOTONIC_RAW."""
    cdef double ns
    with nogil:
        ns = bench_ns_per_tick()
    return bench_clock_name().decode(), ns


def bench_step_call(int n):
    """Return the seconds of a system call that does nothing, as the mean of *n* calls, at least 1."""
    cdef double seconds
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    with nogil:
        bench_ns_per_tick()
        seconds = bench_step_call_c(n)
    return seconds


def bench_step_copy(size_t nbytes, int n):
    """Return the seconds of a copy of *nbytes* bytes, as the mean of *n* copies, at least 1."""
    cdef double seconds
    cdef unsigned char[::1] source = bytearray(max(nbytes, 1)), to = bytearray(max(nbytes, 1))
    if n < 1:
        raise ValueError(f"n must be at least 1, got {n}")
    with nogil:
        bench_ns_per_tick()
        seconds = bench_step_copy_c(&to[0], &source[0], nbytes, n)
    return seconds


def bench_step_pass(int out, int source, unsigned char[::1] message not None, int batch):
    """Send *message* *batch* times into the socket *out*, then receive all from *source*, in this thread.

    Returns
    -------
    tuple of float
        Seconds per message to send and to receive. The receiver overwrites *message*.

    Raises
    ------
    OSError
        If a call fails, or a message does not arrive within 2 s.
    """
    cdef double send_s = 0, recv_s = 0
    cdef int failed
    if batch < 1 or message.shape[0] < 1:
        raise ValueError(f"batch and message must not be empty, got {batch} messages of {message.shape[0]} bytes")
    with nogil:
        bench_ns_per_tick()
        failed = bench_step_pass_c(out, source, &message[0], message.shape[0], batch, &send_s, &recv_s)
    if failed:
        raise OSError(failed, os.strerror(failed))
    return send_s, recv_s
