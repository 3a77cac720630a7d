"""Objects between hosts carry keyed tags: all of them arrive, and no changed or forged object is unpickled."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import textwrap
from collections.abc import Sequence
from types import SimpleNamespace

import needs
import pytest

from viakit.comm.seal import TAG, ForgedObjectError, Seal, SealGroup

DEADLINE_S = 90.0


def _own_address() -> str | None:
    """Return an address of this host that is not the loopback's. No packet is sent."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError:
            return None
        found = probe.getsockname()[0]
        return None if found.startswith("127.") else found


_OWN_ADDRESS = _own_address()
VIAKIT = [sys.executable, "-m", "viakit"]

HEAD = """
import os, pickle, struct, sys, time
import numpy as np
import viakit
from viakit.comm import ForgedObjectError
from viakit.comm import objects
from viakit.comm import seal
comm = viakit.world(sys.argv[1])
rank, size = comm.rank, comm.size
marker = sys.argv[2]

class Planted:
    def __reduce__(self):
        return os.mkdir, (marker,)

def refused(call, source):
    try:
        call()
    except ForgedObjectError as problem:
        assert problem.source == source and f"rank {source}" in str(problem), problem
        assert "was not unpickled" in str(problem), problem
        assert pickle.loads(pickle.dumps(problem)).source == source
    else:
        raise AssertionError("it was accepted")
    assert not os.path.exists(marker)
"""


def job(folder, text: str, protocol: str, ranks: int = 2, hosts: str = "testbed:2") -> str:
    path = folder / "prog.py"
    path.write_text(HEAD + textwrap.dedent(text), encoding="utf-8")
    command = [*VIAKIT, "run", "-n", str(ranks), "--hosts", hosts, str(path), protocol, str(folder / "marker")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert not (folder / "marker").exists()
    return done.stdout


@pytest.fixture(params=["via", "bip", "tcp"])
def protocol(request):
    needs.hosts().close()
    return request.param


def test_all_kinds_of_objects_arrive(tmp_path, protocol):
    text = """
    assert comm.world.seal is not None
    right, left = (rank + 1) % size, (rank - 1) % size
    items = [None, 0, "word", b"V" + bytes(9), b"", list(range(9000)), {"a": np.arange(100_000)}, b"x" * 16384]
    items += [b"y" * length for length in range(16300, 16400)]  # about the longest short message
    items += [[np.full(50_000, i) for i in range(5)], np.arange(200_000).reshape(2, -1)[:, ::2]]
    for item in items:
        sends = comm.isend(item, right, 7)
        got = comm.recv(source=left, tag=7)
        sends.wait()
        assert pickle.dumps(got) == pickle.dumps(item)
        if rank:
            comm.ssend(item, 0, 8)
        else:
            for _ in range(1, size):
                assert pickle.dumps(comm.recv(tag=8)) == pickle.dumps(item)
        assert pickle.dumps(comm.sendrecv(item, right, source=left)) == pickle.dumps(item)
        receive = comm.irecv(source=left)
        comm.send(item, right)
        assert pickle.dumps(receive.wait()) == pickle.dumps(item)
    comm.barrier()
    for root in range(size):
        for item in ("word", np.arange(300_000)):
            assert pickle.dumps(comm.bcast(item if rank == root else None, root)) == pickle.dumps(item)
        gathered = comm.gather((rank, "g"), root)
        assert gathered == ([(i, "g") for i in range(size)] if rank == root else None)
        assert comm.scatter([i * "s" for i in range(size)] if rank == root else None, root) == rank * "s"
        assert comm.reduce([rank], root=root) == ([0, 1, 2] if rank == root else None)
    assert comm.allgather("a" * rank) == ["a" * i for i in range(size)]
    assert comm.alltoall([(rank, i) for i in range(size)]) == [(i, rank) for i in range(size)]
    assert comm.allreduce(rank) == 3
    assert comm.scan(rank) == [0, 1, 3][rank]
    assert comm.exscan(1) == [None, 1, 2][rank]
    part = comm.Split(rank % 2, -rank)
    assert part.allgather(rank) == [[2, 0], [1]][rank % 2]
    few = comm.Create_group(comm.group.Incl([0, 2])) if rank != 1 else None
    if few:
        assert few.bcast(rank, 1) == 2
    none = comm.recv(source=viakit.comm.PROC_NULL)
    comm.send("word", viakit.comm.PROC_NULL)
    """
    job(tmp_path, text, protocol, ranks=3)


def test_what_is_not_of_a_rank_is_not_unpickled(tmp_path, protocol):
    text = """
    forged = pickle.dumps(Planted(), 5)
    longer = b"V" + struct.pack("<II", 1, 1) + struct.pack("<Q", len(forged))
    for message in (forged, forged + bytes(seal.TAG), longer, longer + bytes(2 * seal.TAG), b"", bytes(seal.TAG)):
        if rank == 1:
            comm.Send(message, 0, 3)                    # as a frame that another process has put into the connection
            if message[:1] == b"V":
                comm.start_send(forged, 0, 1, 0, 2).Wait()
        else:
            refused(lambda: comm.recv(source=1), 1)
    comm.Barrier()
    if rank == 1:
        comm.send("the job goes on", 0, 4)
    else:
        assert comm.recv(source=1, tag=4) == "the job goes on"
    """
    job(tmp_path, text, protocol)


def test_what_was_changed_on_its_way_is_refused(tmp_path, protocol):
    text = """
    def changed(data, at):
        data = bytearray(data)
        data[at] ^= 1
        return bytes(data)

    class Crooked:                                      # a wire that flips a bit of one message, then none
        def __init__(self, n, at):
            self.real, self.n, self.at = type(comm).start_send, n, at
        def __call__(self, buffer, dest, tag=0, mode=0, part=0):
            self.n -= 1
            return self.real(comm, changed(buffer, self.at) if self.n == -1 else buffer, dest, tag, mode, part)

    array = np.arange(100_000)
    head = (array, 0, (1, 9, 20, -17, -1))
    for item, n, places in (("short", 0, (0, 5, -1)), head, (array, 1, (0, 40)), (array, 2, (0, -1))):
        for at in places:
            if rank == 1:
                wire = Crooked(n, at)
                for request in objects.start_send(type("Comm", (), {
                    "start_send": staticmethod(wire), "world": comm.world, "number": comm.number, "rank": comm.rank,
                    "seal_group": lambda self: comm.seal_group(),
                    "_n_objects": 40 + n})(), item, 0, 5, 0):
                    request.release() if n == 0 else request.Wait()
            else:
                refused(lambda: comm.recv(source=1, tag=5), 1)
    if rank == 1:
        message = comm.world.seal.short(comm, pickle.dumps(Planted(), 5), 0, 6)
        comm.Send(message, 0, 7)                        # it was sent with another tag
    else:
        refused(lambda: comm.recv(source=1, tag=7), 1)
    os._exit(0)
    """
    job(tmp_path, text, protocol)


@pytest.mark.parametrize("call", ["gather", "bcast", "scatter", "allgather", "alltoall", "reduce", "scan", "split"])
def test_in_collectives(tmp_path, call):
    needs.hosts().close()
    text = f"""
    calls = {{
        "gather": lambda: comm.gather("x", 0),
        "bcast": lambda: comm.bcast("x", 1),
        "scatter": lambda: comm.scatter(["x", "y"], 1),
        "allgather": lambda: comm.allgather("x"),
        "alltoall": lambda: comm.alltoall(["x", "y"]),
        "reduce": lambda: comm.reduce("x", root=0),
        "scan": lambda: comm.scan("x"),
        "split": lambda: comm.Split(1 << 200),          # a color that needs pickles; others travel in blocks
    }}
    call = calls[{call!r}]
    if {call!r} == "scan":                              # there objects go up only
        rank, source = 1 - rank, 0
    else:
        source = 1
    if rank == 1:                                       # the one that lies: a pickle under another key
        comm.world.seal = seal.Seal(bytes(32))
        dump = pickle.dumps
        objects.pickle.dumps = lambda obj, protocol=5, **more: dump(Planted(), protocol)
        objects.Seal = None
        objects.load_plain = lambda *arguments: None
        try:
            call()
        except Exception:
            pass
    else:
        refused(call, source)
    os._exit(0)
    """
    job(tmp_path, text, "tcp")


def test_within_one_host_nothing_is_added(tmp_path):
    text = """
    assert comm.world.seal is None
    if rank == 1:
        comm.send({"word"}, 0)
        comm.send("word", 0)
    else:
        room = bytearray(100)
        status = viakit.comm.Status()
        comm.Recv(room, 1, 0, status)
        assert room[: status.nbytes] == pickle.dumps({"word"}, 5)
        comm.Recv(room, 1, 0, status)
        assert room[: status.nbytes] == b"Cs" + struct.pack("=BI", 1, 4) + b"word"
    """
    job(tmp_path, text, "tcp", hosts="local")


@pytest.mark.parametrize(
    ("environment", "sealed"),
    [
        ({"VIAKIT_ADDRESS": "127.0.0.2"}, False),
        ({"VIAKIT_PROTOCOL": "via"}, False),
        ({"VIAKIT_PROTOCOL": "bip"}, False),
        # Ranks of one host that are connected by an address of its network.
        ({"VIAKIT_ADDRESS": _OWN_ADDRESS}, True),
    ],
)
def test_objects_carry_tags_unless_all_connections_are_local(environment, sealed):
    if environment.get("VIAKIT_ADDRESS", "") is None:
        pytest.skip("this host has no address but the loopback's")
    program = f"""
import viakit
comm = viakit.world()
assert (comm.world.seal is not None) is {sealed}, comm.world.route(1 - comm.rank)
assert comm.allgather(comm.rank) == [0, 1]
"""
    command = [*VIAKIT, "run", "-n", "2", "--", sys.executable, "-c", program]
    wish = {"VIAKIT_PROTOCOL": "tcp"} | environment
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S, env=os.environ | wish)
    assert done.returncode == 0, done.stderr


class _Comm:
    """A communicator as tags see it, of the world ranks `members`."""

    def __init__(self, number: int, rank: int, members: Sequence[int] = (4, 5, 6)) -> None:
        self.number, self.rank, self.group = number, rank, SealGroup(list(members))

    def seal_group(self) -> SealGroup:
        return self.group


def test_a_tag_is_of_one_place(rng):
    data = rng.bytes(1000)
    message = memoryview(Seal(b"k" * 32).short(_Comm(3, 1), data, 2, 5))
    receiver = _Comm(3, 2)
    assert Seal(b"k" * 32).open_short(receiver, message, 1, 5) == data
    assert len(message) == len(data) + TAG
    wrong = [
        (Seal(b"K" * 32), receiver, message, 1, 5),
        (Seal(b"k" * 32), _Comm(4, 2), message, 1, 5),
        (Seal(b"k" * 32), _Comm(3, 0), message, 1, 5),
        (Seal(b"k" * 32), _Comm(3, 2, (4, 5, 7)), message, 1, 5),  # another part of a Split, of the same number
        (Seal(b"k" * 32), _Comm(3, 2, (7, 5, 6)), message, 1, 5),
        (Seal(b"k" * 32), receiver, message, 0, 5),
        (Seal(b"k" * 32), receiver, message, 1, 6),
        (Seal(b"k" * 32), receiver, message[:-1], 1, 5),
        (Seal(b"k" * 32), receiver, message[1:], 1, 5),
        (Seal(b"k" * 32), receiver, message[:3], 1, 5),
    ]
    for seal, comm, text, source, tag in wrong:
        with pytest.raises(ForgedObjectError):
            seal.open_short(comm, text, source, tag)
    with pytest.raises(ForgedObjectError):  # a short object is no head
        Seal(b"k" * 32).open_head(receiver, message, 1, 5)


@pytest.mark.parametrize("dest", [-1, 0])
def test_an_object_of_a_collective_is_not_valid_in_another_part_of_a_split(dest):
    def step(rank, members):
        """The same collective in one of two parts, which have the same number."""
        comm = _Comm(3, rank, members)
        return SimpleNamespace(comm=comm, rank=rank, tag=9, seal_group=comm.seal_group)

    seal = Seal(os.urandom(32))
    message = seal.collective(step(1, (0, 1)), b"pickle", dest)
    assert seal.open_collective(step(0, (0, 1)), message, 1, dest) == b"pickle"
    for members in ((2, 3), (0, 1, 2), (1, 0)):
        with pytest.raises(ForgedObjectError):
            seal.open_collective(step(0, members), message, 1, dest)


def test_parts_are_not_cut_elsewhere():
    seal, receiver = Seal(os.urandom(32)), _Comm(3, 2)
    head = seal.head(_Comm(3, 1), b"head", [b"ab", b"c"], 2, 5)
    opened, due = seal.open_head(receiver, memoryview(head), 1, 5)
    assert opened == b"head"
    seal.check_parts(receiver, [b"ab", b"c"], due, 1, 5)
    for parts in ([b"a", b"bc"], [b"abc"], [b"ab", b"c", b""], [b"c", b"ab"], [b"ab", b"d"]):
        with pytest.raises(ForgedObjectError):
            seal.check_parts(receiver, parts, due, 1, 5)
