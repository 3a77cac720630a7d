"""The Virtual Interface Architecture from Python: comfort over ``vipl.h``, and no protocol of its own.

A program opens a :class:`Nic`, registers memory, makes a :class:`Vi`, posts receives, connects, and posts sends; it
takes descriptors from the queues again when they are done. Everything but descriptors is a context manager; closing a
NIC closes all that was made from it. Times are seconds, sizes are bytes.

    >>> from viakit import via
    >>> with via.Nic("loop") as nic, nic.create_region(4096) as region:
    ...     region.nbytes
    4096

Calls that wait release the GIL and end within 0.1 s of a signal whose handler raises (Ctrl-C). What goes wrong is an
exception of :mod:`viakit.errors`. Objects belong to the process that made them: after a fork the child opens a NIC of
its own. One object may be used by several threads, but two threads that wait on one queue share what arrives there.
"""

from __future__ import annotations

from viakit._core import (
    Allocation,
    CompletionQueue,
    ConnectionRequest,
    Descriptor,
    MemoryRegion,
    Nic,
    ProtectionTag,
    Segment,
    Tap,
    Vi,
    counters_help,
    frame_kinds,
    live_objects,
)
from viakit._faults import FaultRule, Faults
from viakit._types import (
    Address,
    AsyncError,
    Checksum,
    Completion,
    Counters,
    ErrorCode,
    Form,
    NicAttributes,
    NicInfo,
    Operation,
    Queue,
    Reliability,
    Resource,
    Retransmission,
    Return,
    Status,
    TapInfo,
    ViAttributes,
    ViInfo,
    ViState,
)
from viakit.errors import CompletionError, ViaError

__all__ = [
    "Address",
    "Allocation",
    "AsyncError",
    "Checksum",
    "Completion",
    "CompletionError",
    "CompletionQueue",
    "ConnectionRequest",
    "Counters",
    "Descriptor",
    "ErrorCode",
    "FaultRule",
    "Faults",
    "Form",
    "MemoryRegion",
    "Nic",
    "NicAttributes",
    "NicInfo",
    "Operation",
    "ProtectionTag",
    "Queue",
    "Reliability",
    "Resource",
    "Retransmission",
    "Return",
    "Segment",
    "Status",
    "Tap",
    "TapInfo",
    "Vi",
    "ViAttributes",
    "ViInfo",
    "ViState",
    "ViaError",
    "counters_help",
    "frame_kinds",
    "live_objects",
]
