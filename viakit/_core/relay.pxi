# The relay of a testbed's wire with a delay (csrc/bench/relay.c). viakit.testbed.host runs it in a process of its own.

cdef extern from "bench/relay.h" nogil:
    enum:
        RELAY_MAX_PORTS
        RELAY_ADDRESS_LEN

    ctypedef struct relay_port_plan:
        char name[16]
        unsigned char host[6]

    ctypedef struct relay_counts:
        uint64_t frames
        uint64_t bytes
        uint64_t dropped
        uint64_t late_ns
        uint64_t late_max_ns
        uint64_t queued_max

    int relay_run(const relay_port_plan *ports, int n_ports, uint64_t delay_ns, uint32_t longest, relay_counts *counts,
                  void (*ready)(void *) noexcept nogil, void *context)

RELAY_COUNTS = ("frames", "bytes", "dropped", "late_ns", "late_max_ns", "queued_max")


cdef void _relay_ready(void *context) noexcept nogil:
    with gil:
        (<object>context)()


def relay(ports, uint64_t delay_ns, uint32_t longest, uint64_t[::1] counts, ready):
    """Forward frames between interfaces of this network namespace until the process ends.

    Parameters
    ----------
    ports : list of (str, bytes)
        Each interface, and the MAC address of the host at its other end.
    delay_ns : int
        Delay of each frame in nanoseconds.
    longest : int
        Length of the longest frame in bytes, with its Ethernet header.
    counts : array of uint64
        Where the relay counts; its fields are named by ``RELAY_COUNTS``. The memory may be shared with other processes.
    ready : callable
        Called once, when no later frame can be missed.

    Raises
    ------
    OSError
        If a packet socket or its ring is refused.
    """
    cdef relay_port_plan plans[RELAY_MAX_PORTS]
    cdef int error, i, n = len(ports)
    cdef void *context = <void *>ready
    if not 1 <= n <= RELAY_MAX_PORTS or <size_t>counts.shape[0] * 8 < sizeof(relay_counts):
        raise ValueError(f"{n} ports and {counts.shape[0]} counts; expected 1 to {RELAY_MAX_PORTS}, and "
                         f"{sizeof(relay_counts) // 8} counts")
    memset(plans, 0, sizeof(plans))
    for i, (name, address) in enumerate(ports):
        text = name.encode()
        if len(text) > 15 or len(address) != RELAY_ADDRESS_LEN:
            raise ValueError(f"port {name!r} with address {address!r}; expected at most 15 characters and 6 bytes")
        memcpy(plans[i].name, <const char *>text, len(text))
        memcpy(plans[i].host, <const char *><bytes>address, RELAY_ADDRESS_LEN)
    with nogil:
        error = relay_run(plans, n, delay_ns, longest, <relay_counts *>&counts[0], _relay_ready, context)
    if error:
        raise OSError(error, os.strerror(error))
