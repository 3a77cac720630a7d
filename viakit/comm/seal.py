"""Keyed tags on objects, in jobs whose connections are not all local to a host.

An object is a pickle, and unpickling runs what the pickle contains. On a network other processes may be able to write
into a connection. So a rank unpickles only bytes that carry the tag of a rank of its job: BLAKE2s with a key derived
from the job's secret, over the bytes and the place where they belong (:data:`_PLACE`). If all connections
are shared memory or the loopback's, messages have no tags: other users' processes cannot write to them.

::

    short object     pickle | tag
    long object      head | tag of all parts | tag of the head and of the parts' tag          then the parts, unchanged
    in collectives   pickle | tag
"""

from __future__ import annotations

import hashlib
import hmac
import struct
from collections.abc import Sequence
from typing import Any

from viakit.base.words import counted
from viakit.comm.errors import CLASSES, Exception

__all__ = ["TAG", "ForgedObjectError", "Seal", "SealGroup"]

TAG = 16  # bytes of a tag
# Kind, number and members of the communicator, world ranks of source and destination (-1: several), message tag, length
# in bytes. Communicators of different ranks may have the same number, as the parts of a Split do.
_PLACE = struct.Struct("<cI16siiIQ")
_SHORT, _HEAD, _PARTS, _COLLECTIVE = b"S", b"H", b"P", b"C"
_LENGTH = struct.Struct("<Q")


class ForgedObjectError(Exception):
    """An object was changed in transit, or no rank of this job sent it. It has not been unpickled.

    Attributes
    ----------
    source : int
        The rank in the communicator that the message names as its source.
    """

    def __init__(self, source: int, text: str) -> None:
        super().__init__(CLASSES["ERR_OTHER"], text)
        self.source = source

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.source, self.text)


class SealGroup:
    """Ranks of a communicator, or of a part of one, as the place of a tag names them.

    Parameters
    ----------
    world_ranks : list of int
        World rank of each rank.
    remote : list of int, optional
        World rank of each remote rank of an intercommunicator, to and from which messages go.
    """

    def __init__(self, world_ranks: list[int], remote: list[int] | None = None) -> None:
        self.world_ranks, self.remote = world_ranks, world_ranks if remote is None else remote
        both = world_ranks if remote is None else sorted([*world_ranks, *remote])
        packed = struct.pack(f"<{len(both)}I", *both)
        self.members = hashlib.blake2s(packed, digest_size=16).digest()


def _private(message: Any) -> memoryview:
    """Copy received bytes. A peer may still have the right to write to the original after the check."""
    return memoryview(bytes(message))


class Seal:
    """Create and check the tags of one world.

    Parameters
    ----------
    key : bytes
        A key of this world alone, the same on all of its ranks. Tags recorded in another job are not valid here.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key

    def _tag(
        self,
        group: SealGroup,
        kind: bytes,
        number: int,
        source: int,
        dest: int,
        tag: int,
        pieces: Sequence[Any],
        incoming: bool = False,
    ) -> bytes:
        whole = sum(len(piece) for piece in pieces)
        senders, receivers = (group.remote, group.world_ranks) if incoming else (group.world_ranks, group.remote)
        to = (
            receivers[dest] if 0 <= dest < len(receivers) else -1
        )  # The send itself refuses a rank that does not exist.
        place = (senders[source], to, tag & 0xFFFFFFFF, whole)
        state = hashlib.blake2s(_PLACE.pack(kind, number, group.members, *place), key=self._key, digest_size=TAG)
        for piece in pieces:
            if kind == _PARTS:
                state.update(_LENGTH.pack(len(piece)))
            state.update(piece)
        return state.digest()

    def _check(
        self,
        given: Any,
        group: SealGroup,
        kind: bytes,
        number: int,
        source: int,
        dest: int,
        tag: int,
        pieces: Sequence[Any],
    ) -> None:
        if not hmac.compare_digest(bytes(given), self._tag(group, kind, number, source, dest, tag, pieces, True)):
            what = "an object of a collective" if kind == _COLLECTIVE else f"the object with tag {tag}"
            whole = sum(len(piece) for piece in pieces)
            raise ForgedObjectError(
                source,
                f"{what} from rank {source} ({counted(whole, 'byte')}) was changed or forged on its way; it was not "
                "unpickled. Between hosts, receive with recv only what was sent with send, and buffers with Recv",
            )

    # ---- messages

    def short(self, comm: Any, data: bytes, dest: int, tag: int) -> bytes:
        """Return a short object's message."""
        return data + self._tag(comm.seal_group(), _SHORT, comm.number, comm.rank, dest, tag, [data])

    def open_short(self, comm: Any, message: memoryview, source: int, tag: int) -> memoryview:
        """Return the pickle of a short object's message. Raises ForgedObjectError."""
        message = _private(message)
        data = message[:-TAG]
        self._check(message[-TAG:], comm.seal_group(), _SHORT, comm.number, source, comm.rank, tag, [data])
        return data

    def head(self, comm: Any, head: bytes, parts: Sequence[Any], dest: int, tag: int) -> bytes:
        """Return a long object's first message."""
        head += self._tag(comm.seal_group(), _PARTS, comm.number, comm.rank, dest, tag, parts)
        return head + self._tag(comm.seal_group(), _HEAD, comm.number, comm.rank, dest, tag, [head])

    def open_head(self, comm: Any, message: memoryview, source: int, tag: int) -> tuple[memoryview, bytes]:
        """Return the head, and the tag that its parts must have. Raises ForgedObjectError."""
        message = _private(message)
        signed = message[:-TAG]
        self._check(message[-TAG:], comm.seal_group(), _HEAD, comm.number, source, comm.rank, tag, [signed])
        return signed[:-TAG], bytes(signed[-TAG:])

    def check_parts(self, comm: Any, parts: list[Any], given: bytes, source: int, tag: int) -> None:
        """Check a long object's parts. The first part, the pickle, becomes a copy. Raises ForgedObjectError."""
        parts[:1] = map(_private, parts[:1])
        self._check(given, comm.seal_group(), _PARTS, comm.number, source, comm.rank, tag, parts)

    # ---- collectives

    def collective(self, step: Any, data: bytes, dest: int = -1) -> bytes:
        """Return the bytes of an object that this rank gives to a collective; `dest` if it is for one rank."""
        return data + self._tag(step.seal_group(), _COLLECTIVE, step.comm.number, step.rank, dest, step.tag, [data])

    def open_collective(self, step: Any, message: Any, source: int, dest: int = -1) -> memoryview:
        """Return the pickle of an object that a rank passed to a collective. Raises ForgedObjectError."""
        view = _private(message)
        data = view[:-TAG]
        self._check(view[-TAG:], step.seal_group(), _COLLECTIVE, step.comm.number, source, dest, step.tag, [data])
        return data
