"""Short objects of the simplest types, which `send` transmits without pickling them, and what it pickles."""

import math
import pickle
import random

import numpy as np
import pytest

from viakit import _core
from viakit.mpi import MPI


class Dictionary(dict):
    pass


def nested(depth):
    value = []
    for _ in range(depth - 1):
        value = [value]
    return value


def message_of(value):
    """Return the message of an object."""
    room, status = bytearray(16384), MPI.Status()
    request = MPI.COMM_SELF.Irecv(room, 0)  # a long message to the same rank waits for its receive
    MPI.COMM_SELF.send(value, 0)
    request.Wait(status)
    return bytes(room[: status.Get_count(MPI.BYTE)])


COMPACT = [
    None,
    True,
    False,
    *(sign * 2**n + k for n in (0, 7, 8, 31, 32, 62) for k in (-1, 0, 1) for sign in (-1, 1)),
    2**63 - 1,
    -(2**63),
    0.0,
    -0.0,
    1e308,
    math.inf,
    b"",
    bytes(range(256)),
    b"x" * 8000,
    "",
    "plain",
    "Größe",
    "水",
    "\U0001f30a waves",
    "\ud800 alone",
    [],
    (),
    {},
    [1, [2, (3, {"four": [5.0, None]})]],
    {"a": 1, "b": [1, 2, 3], "c": "hello", 4: (True, b"\0"), (1, "t"): {}},
    {"step": 64, "data": bytes(64)},
    list(range(500)),
    nested(16),
]

PICKLED = [
    2**63,
    -(2**63) - 1,
    1j,
    {1, 2},
    bytearray(3),
    range(3),
    np.arange(3),
    Dictionary(a=1),
    [Dictionary()],
    MPI.DATATYPE_NULL,
    list(range(501)),
    b"x" * 8192,
    "水" * 4096,
    nested(17),
]


@pytest.mark.parametrize("value", COMPACT, ids=lambda value: repr(value)[:30])
def test_simple_objects_are_not_pickled_and_arrive_as_they_were(value):
    message = message_of(value)
    assert message[:1] == b"C"
    MPI.COMM_SELF.send(value, 0)
    got = MPI.COMM_SELF.recv()
    assert repr(got) == repr(value)  # with the types of all parts, the order of keys, and the sign of zero
    assert got == value


@pytest.mark.parametrize("value", PICKLED, ids=lambda value: repr(value)[:30])
def test_other_objects_are_pickled(value):
    assert repr(pickle.loads(message_of(value))) == repr(value)
    request = MPI.COMM_SELF.irecv(None, 0)
    MPI.COMM_SELF.send(value, 0)
    assert repr(request.wait()) == repr(value)


def test_objects_within_an_object_stay_the_same():
    inner, pair, cycle = [1], ([2],), {}
    cycle["self"] = cycle
    MPI.COMM_SELF.send([inner, inner], 0)
    got = MPI.COMM_SELF.recv()
    assert got == [[1], [1]]
    assert got[0] is got[1]
    MPI.COMM_SELF.send([pair, pair], 0)
    got = MPI.COMM_SELF.recv()
    assert got[0][0] is got[1][0]
    MPI.COMM_SELF.send(cycle, 0)
    got = MPI.COMM_SELF.recv()
    assert got["self"] is got
    many = [[i] for i in range(100)]
    MPI.COMM_SELF.send([many[0], *many], 0)
    got = MPI.COMM_SELF.recv()
    assert got[0] is got[1]
    assert got[1:] == many


def test_nan_is_a_number():
    MPI.COMM_SELF.send([math.nan], 0)
    assert math.isnan(MPI.COMM_SELF.recv()[0])


def test_every_way_to_receive_understands_them():
    value = {"a": [1, "b"]}
    for receive in (
        lambda: MPI.COMM_SELF.irecv(None, 0).wait(),
        lambda: MPI.COMM_SELF.mprobe(0).recv(),
        lambda: MPI.COMM_SELF.improbe(0).irecv().wait(),
    ):
        MPI.COMM_SELF.send(value, 0)
        assert receive() == value
    status = MPI.Status()
    MPI.COMM_SELF.send(value, 0, 5)
    assert MPI.COMM_SELF.recv(None, MPI.ANY_SOURCE, MPI.ANY_TAG, status) == value
    assert (status.Get_source(), status.Get_tag()) == (0, 5)


def test_a_pickler_of_the_program_has_all_objects():
    MPI.pickle.__init__(lambda obj: b"C" + pickle.dumps(obj), lambda data: pickle.loads(bytes(data)[1:]))
    try:
        MPI.COMM_SELF.send({"a": 1}, 0)
        assert MPI.COMM_SELF.recv() == {"a": 1}
    finally:
        MPI.pickle.__init__()
    assert message_of({"a": 1})[:1] == b"C"


@pytest.mark.parametrize(
    "data", [b"C", b"Cs", b"Cs\x03\0\0\0\0", b"Cz", b"Cb", b"Cq1234", b"C[\xff\xff\xff\xff", b"C(" * 9, b"C{\1\0\0\0N"]
)
def test_bytes_that_are_no_object_are_refused(data):
    with pytest.raises((EOFError, ValueError)):
        _core.load_compact(data)


def test_damaged_messages_are_refused_or_read():
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    rng = random.Random(seed)
    whole = message_of({"a": [1, 2.5, "Größe", ("水", b"bytes", None, True)], "n": 2**40})
    for n in range(1, len(whole)):
        with pytest.raises((EOFError, ValueError)):
            _core.load_compact(whole[:n])
    for _ in range(20000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 4)):
            data[rng.randrange(1, len(data))] = rng.randrange(256)
        try:
            _core.load_compact(data)
        except (EOFError, ValueError, TypeError, SystemError):
            pass
