"""What can go wrong, as exceptions: one class per code of ``vipl.h``, each also a built-in that people already catch.

A *call* that fails has changed nothing and raises the class that :data:`EXCEPTIONS` gives for its code. A *completion*
that fails is a descriptor with an error in its status and raises :class:`CompletionError` when it is taken from its
queue. Nothing is ever both.
"""

from __future__ import annotations

import errno as _errno
from typing import TYPE_CHECKING, Any

from viakit._types import Operation, Return, Status

if TYPE_CHECKING:
    from viakit._core import Descriptor, Vi

__all__ = [
    "COMPLETION_TEXTS",
    "EXCEPTIONS",
    "ClosedError",
    "CompletionError",
    "ForkError",
    "InvalidParameterError",
    "InvalidStateError",
    "MtuError",
    "NameServiceError",
    "NicPermissionError",
    "NoMatchError",
    "NotReachableError",
    "NotSupportedError",
    "QosError",
    "RdmaReadError",
    "RejectedError",
    "ReliabilityLevelError",
    "ResourceError",
    "TagError",
    "ViaError",
    "ViaTimeoutError",
]


class ViaError(Exception):
    """The base of all errors of this package's VIA.

    Attributes
    ----------
    code : Return or None
        What the C library answered; None for errors that Python noticed first.
    operation : str
        The VIPL function that failed, or "".
    """

    def __init__(self, message: str, *, code: int | None = None, operation: str = "") -> None:
        super().__init__(message)
        self.code = None if code is None else Return(code)
        self.operation = operation


class ClosedError(ViaError, ValueError):
    """The object, or the NIC that it belonged to, has been closed."""


class ForkError(ViaError, RuntimeError):
    """The object was made before a fork and belongs to the parent: open a NIC in the child."""


class InvalidParameterError(ViaError, ValueError):
    """A value that makes no sense, or a handle that is no longer valid (``VIP_INVALID_PARAMETER``)."""


class ResourceError(ViaError, MemoryError):
    """Something ran out, is still in use, or does not exist on this machine (``VIP_ERROR_RESOURCE``)."""


class NicPermissionError(ViaError, PermissionError):
    """The NIC exists but the kernel does not let this user open it; raw Ethernet needs CAP_NET_RAW."""

    errno = _errno.EPERM


class ViaTimeoutError(ViaError, TimeoutError):
    """The time was over before it happened (``VIP_TIMEOUT``); what was posted is still posted."""

    errno = _errno.ETIMEDOUT


class RejectedError(ViaError, ConnectionRefusedError):
    """The other side looked at the connection request and refused it (``VIP_REJECT``)."""

    errno = _errno.ECONNREFUSED


class NoMatchError(ViaError, ConnectionRefusedError):
    """The other NIC is there, but nobody waits for this discriminator (``VIP_NO_MATCH``)."""

    errno = _errno.ECONNREFUSED


class NotReachableError(ViaError, ConnectionError):
    """There is no NIC of that address (``VIP_NOT_REACHABLE``)."""

    errno = _errno.EHOSTUNREACH


class ReliabilityLevelError(ViaError, ValueError):
    """The two VIs differ in reliability level, or the NIC lacks the level (``VIP_INVALID_RELIABILITY_LEVEL``)."""


class MtuError(ViaError, ValueError):
    """The two VIs differ in maximal transfer size, or the NIC allows less (``VIP_INVALID_MTU``)."""


class QosError(ViaError, ValueError):
    """The two VIs differ in quality of service (``VIP_INVALID_QOS``)."""


class TagError(ViaError, ValueError):
    """The protection tag is unknown to the NIC (``VIP_INVALID_PTAG``)."""


class RdmaReadError(ViaError, ValueError):
    """RDMA read was asked for where it is not available (``VIP_INVALID_RDMAREAD``)."""


class InvalidStateError(ViaError, RuntimeError):
    """The object is not in a state that allows this (``VIP_INVALID_STATE``)."""


class NameServiceError(ViaError, LookupError):
    """The name or the address is unknown (``VIP_ERROR_NAMESERVICE``)."""


class NotSupportedError(ViaError, NotImplementedError):
    """The provider, or the link, does not have that (``VIP_ERROR_NOT_SUPPORTED``)."""


# What each bit means to the program that gets it, and what to do about it.
COMPLETION_TEXTS: dict[Status, str] = {
    Status.FORMAT_ERROR: "the descriptor contradicts itself; prepare it anew",
    Status.PROTECTION_ERROR: "a local segment lies outside its region, or the region was deregistered or has another "
    "protection tag than the VI",
    Status.LENGTH_ERROR: "the message is longer than the receive descriptor, or than the VI's maximal transfer size",
    Status.PARTIAL_ERROR: "only a part of the message arrived",
    Status.DESC_FLUSHED: "the VI was not connected, or lost its connection, before this was done; "
    "disconnect() makes a VI in state ERROR usable again",
    Status.TRANSPORT_ERROR: "the data could not be delivered, or was damaged on its way",
    Status.RDMA_PROT_ERROR: "the remote region does not grant this: address, handle, length, tag, or rdma_write=True "
    "on both the region and the VI",
    Status.REMOTE_DESC_ERROR: "the other side had no receive posted, or one that was too short",
}


class CompletionError(ViaError, RuntimeError):
    """A descriptor completed with an error (``VIP_DESCRIPTOR_ERROR``).

    Attributes
    ----------
    status : Status
        The bits of the descriptor's status word.
    operation_kind : Operation
        What the descriptor was for.
    descriptor : Descriptor or None
        The descriptor, free to be used again; None after the error was pickled.
    vi : Vi or None
        The VI it was posted on; None after the error was pickled.
    """

    def __init__(
        self, message: str, *, status: int = 0, operation_kind: int = 0, descriptor: Any = None, vi: Any = None
    ) -> None:
        super().__init__(message, code=Return.DESCRIPTOR_ERROR)
        self.status = Status(status)
        self.operation_kind = Operation(operation_kind)
        self.descriptor: Descriptor | None = descriptor
        self.vi: Vi | None = vi

    def __reduce__(self) -> tuple[Any, ...]:
        # The descriptor and the VI belong to one process; the rest may travel.
        state = {key: value for key, value in self.__dict__.items() if key not in ("descriptor", "vi")}
        return (type(self), self.args, state)

    @classmethod
    def from_status(cls, status: int, operation: int, descriptor: Any, vi: Any) -> CompletionError:
        """The error for a descriptor's status word, said in words."""
        bits = [bit for bit in COMPLETION_TEXTS if status & bit]
        names = " | ".join(bit.name or "" for bit in bits)
        texts = "; ".join(COMPLETION_TEXTS[bit] for bit in bits)
        what = Operation(operation).name.lower().replace("_", " ")
        return cls(f"{what} failed with {names}: {texts}", status=status, operation_kind=operation,
                   descriptor=descriptor, vi=vi)  # fmt: skip


EXCEPTIONS: dict[Return, type[ViaError]] = {
    Return.INVALID_PARAMETER: InvalidParameterError,
    Return.ERROR_RESOURCE: ResourceError,
    Return.TIMEOUT: ViaTimeoutError,
    Return.REJECT: RejectedError,
    Return.INVALID_RELIABILITY_LEVEL: ReliabilityLevelError,
    Return.INVALID_MTU: MtuError,
    Return.INVALID_QOS: QosError,
    Return.INVALID_PTAG: TagError,
    Return.INVALID_RDMAREAD: RdmaReadError,
    Return.DESCRIPTOR_ERROR: CompletionError,
    Return.INVALID_STATE: InvalidStateError,
    Return.ERROR_NAMESERVICE: NameServiceError,
    Return.NO_MATCH: NoMatchError,
    Return.NOT_REACHABLE: NotReachableError,
    Return.ERROR_NOT_SUPPORTED: NotSupportedError,
}


def from_code(code: int, operation: str, text: str, os_error: int = 0) -> ViaError:
    """The exception for what a call answered.

    Parameters
    ----------
    code
        A value of :class:`Return` other than SUCCESS and NOT_DONE.
    operation
        The VIPL function that answered.
    text
        A sentence that says what was given, what would have been right, and what to do next.
    os_error
        The C library's errno after the call, where it means something; EPERM and EACCES become NicPermissionError.
    """
    if os_error in (_errno.EPERM, _errno.EACCES):
        return NicPermissionError(text, code=code, operation=operation)
    if code == Return.DESCRIPTOR_ERROR:
        return CompletionError(text)
    return EXCEPTIONS[Return(code)](text, code=code, operation=operation)
