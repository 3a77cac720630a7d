"""Exceptions: one class for each code of ``vipl.h``. Each is also a built-in exception of the same meaning.

A *call* that fails has changed nothing. It raises the class that :data:`EXCEPTIONS` gives for its code. A *completion*
that fails is a descriptor with an error in its status. It raises :class:`CompletionError` when the descriptor is taken
from its queue. No error is both.
"""

from __future__ import annotations

import errno as _errno
from typing import TYPE_CHECKING, Any

from viakit.base.types import Operation, Return, Status

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
    """Base class of all errors of the VIA provider.

    Attributes
    ----------
    code : Return or None
        Return code of the C library; None for errors that Python detected first.
    operation : str
        Name of the VIPL function that failed, or "".
    """

    def __init__(self, message: str, *, code: int | None = None, operation: str = "") -> None:
        super().__init__(message)
        self.code = None if code is None else Return(code)
        self.operation = operation


class ClosedError(ViaError, ValueError):
    """The object, or the NIC it belongs to, has been closed."""


class ForkError(ViaError, RuntimeError):
    """The object was created before a fork and belongs to the parent process; the child must open a NIC of its own."""


class InvalidParameterError(ViaError, ValueError):
    """A value is invalid, or a handle is no longer valid (``VIP_INVALID_PARAMETER``)."""


class ResourceError(ViaError, MemoryError):
    """A resource is exhausted, still in use, or absent on this machine (``VIP_ERROR_RESOURCE``)."""


class NicPermissionError(ViaError, PermissionError):
    """The NIC exists, but the kernel does not permit this user to open it. Raw Ethernet needs CAP_NET_RAW."""

    errno = _errno.EPERM


class ViaTimeoutError(ViaError, TimeoutError):
    """The timeout expired (``VIP_TIMEOUT``). Posted descriptors are still posted."""

    errno = _errno.ETIMEDOUT


class RejectedError(ViaError, ConnectionRefusedError):
    """The peer rejected the connection request (``VIP_REJECT``)."""

    errno = _errno.ECONNREFUSED


class NoMatchError(ViaError, ConnectionRefusedError):
    """The remote NIC exists, but no endpoint waits for this discriminator (``VIP_NO_MATCH``)."""

    errno = _errno.ECONNREFUSED


class NotReachableError(ViaError, ConnectionError):
    """No NIC has this address (``VIP_NOT_REACHABLE``)."""

    errno = _errno.EHOSTUNREACH


class ReliabilityLevelError(ViaError, ValueError):
    """The VIs differ in reliability level, or the NIC lacks the level (``VIP_INVALID_RELIABILITY_LEVEL``)."""


class MtuError(ViaError, ValueError):
    """The VIs differ in maximum transfer size, or the NIC supports less (``VIP_INVALID_MTU``)."""


class QosError(ViaError, ValueError):
    """The VIs differ in quality of service (``VIP_INVALID_QOS``)."""


class TagError(ViaError, ValueError):
    """The NIC does not know the protection tag (``VIP_INVALID_PTAG``)."""


class RdmaReadError(ViaError, ValueError):
    """RDMA read was requested where it is not supported (``VIP_INVALID_RDMAREAD``)."""


class InvalidStateError(ViaError, RuntimeError):
    """The object's state does not permit the operation (``VIP_INVALID_STATE``)."""


class NameServiceError(ViaError, LookupError):
    """The name or the address is unknown (``VIP_ERROR_NAMESERVICE``)."""


class NotSupportedError(ViaError, NotImplementedError):
    """The provider or the link does not support the operation (``VIP_ERROR_NOT_SUPPORTED``)."""


# The meaning of each error bit, and what to do about it.
COMPLETION_TEXTS: dict[Status, str] = {
    Status.FORMAT_ERROR: "the descriptor is inconsistent; prepare it again",
    Status.PROTECTION_ERROR: "a local segment lies outside its region, or the region was deregistered or has another "
    "protection tag than the VI",
    Status.LENGTH_ERROR: "the message is longer than the receive descriptor, or than the VI's maximum transfer size",
    Status.PARTIAL_ERROR: "only a part of the message arrived",
    Status.DESC_FLUSHED: "the VI was not connected, or lost its connection, before this descriptor completed; "
    "disconnect() makes a VI in state ERROR usable again",
    Status.TRANSPORT_ERROR: "the data could not be delivered, or was damaged in transit",
    Status.RDMA_PROT_ERROR: "the remote side refused the access; check address, handle, length and tag, and "
    "rdma_write=True on both the region and the VI",
    Status.REMOTE_DESC_ERROR: "the peer had no receive posted, or one that was too short",
}


class CompletionError(ViaError, RuntimeError):
    """A descriptor completed with an error (``VIP_DESCRIPTOR_ERROR``).

    Attributes
    ----------
    status : Status
        Bits of the descriptor's status word.
    operation_kind : Operation
        Operation of the descriptor.
    descriptor : Descriptor or None
        The descriptor, which can be posted again; None after the error was pickled.
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
        # The descriptor and the VI belong to one process; the other attributes are pickled.
        state = {key: value for key, value in self.__dict__.items() if key not in ("descriptor", "vi")}
        return (type(self), self.args, state)

    @classmethod
    def from_status(cls, status: int, operation: int, descriptor: Any, vi: Any) -> CompletionError:
        """Return the error for a descriptor's status word, with a text for each error bit."""
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
    """Return the exception for the return code of a call.

    Parameters
    ----------
    code : int
        A value of :class:`Return` other than SUCCESS and NOT_DONE.
    operation : str
        The VIPL function that returned the code.
    text : str
        What was given, what is accepted, and what to do next.
    os_error : int
        The C library's errno after the call, if it is meaningful. EPERM and EACCES give NicPermissionError.
    """
    if os_error in (_errno.EPERM, _errno.EACCES):
        return NicPermissionError(text, code=code, operation=operation)
    if code == Return.DESCRIPTOR_ERROR:
        return CompletionError(text)
    return EXCEPTIONS[Return(code)](text, code=code, operation=operation)
