"""The Virtual Interface Architecture in Python: a thin object layer over ``vipl.h``, without a protocol of its own.

A program opens a :class:`Nic`, registers memory, creates a :class:`Vi`, posts receives, connects, and posts sends.
Completed descriptors are taken from the queues. All objects except descriptors are context managers. Closing a NIC
closes all objects that were created from it. Times are in seconds, sizes in bytes.

    >>> from viakit import via
    >>> with via.Nic("loop") as nic, nic.create_region(4096) as region:
    ...     region.nbytes
    4096

Calls that wait release the GIL, and end within 0.1 s of a signal whose handler raises (Ctrl-C). Errors are raised as
exceptions of :mod:`viakit.errors`. Objects belong to the process that created them: after a fork the child opens a NIC
of its own. Several threads may use one object, but two threads that wait on one queue share its completions.
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
    link_of,
    links,
    live_objects,
)
from viakit.base.faults import FaultRule, Faults
from viakit.base.types import (
    Address,
    AsyncError,
    Checksum,
    Completion,
    Counters,
    ErrorCode,
    Form,
    LinkInfo,
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
    "LinkInfo",
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
    "link_of",
    "links",
    "live_objects",
]
