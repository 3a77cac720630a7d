"""A user's program, which mypy checks and no test runs: the types of viakit's public interface.

Every line has the type that it says, and the calls that are wrong are found: ``tools/lint`` complains otherwise.
"""

# mypy: disallow-untyped-calls, warn-unused-ignores, warn-return-any

import numpy as np
from typing_extensions import assert_type

import viakit
from viakit import via
from viakit.comm import Cartcomm, Group, Intracomm, Message, Prequest, Request, Status


def messages() -> None:
    comm = viakit.world("via")
    data = np.zeros(4)
    assert_type(comm, Intracomm)
    assert_type(comm.rank, int)
    assert_type(comm.group, Group)
    comm.Send(data, 1)
    comm.Send([data, 4], dest=1, tag=2)
    assert_type(comm.Isend(data, 1), Request)
    assert_type(comm.Isend(data, 1).Wait(), bool)
    assert_type(comm.Mprobe(), Message)
    status = Status()
    comm.Recv(bytearray(8), source=0, status=status)
    assert_type(status.Get_source(), int)
    comm.Send(data)  # type: ignore[call-arg]
    comm.Recv(data, status=0)  # type: ignore[arg-type]
    comm.Sned(data, 1)  # type: ignore[attr-defined]


def collectives() -> None:
    comm = viakit.world()
    data = np.zeros(4)
    comm.Allreduce(data, np.empty(4))
    comm.Gather(data, None, root=0)
    assert_type(comm.Ibcast(data, root=1), Request)
    assert_type(comm.Barrier_init(), Prequest)
    comm.Gather(data)  # type: ignore[call-arg]
    comm.Ibcast(data, root="0")  # type: ignore[arg-type]


def communicators() -> None:
    comm = viakit.world()
    assert_type(comm.Dup(), Intracomm)
    assert_type(comm.Clone(), Intracomm)
    assert_type(comm.Split(color=1), Intracomm)
    assert_type(comm.Split_type(0), Intracomm)
    assert_type(comm.Create(comm.Get_group()), Intracomm)
    assert_type(comm.Create_group(comm.Get_group()), Intracomm)
    grid = comm.Create_cart([2, 2], periods=[True, False])
    assert_type(grid, Cartcomm)
    assert_type(grid.Dup(), Cartcomm)
    assert_type(grid.Sub([True, False]), Cartcomm)
    assert_type(grid.coords, list[int])
    comm.Split(colour=1)  # type: ignore[call-arg]
    comm.Create([0, 1])  # type: ignore[arg-type]
    comm.Split(1).Sub([True])  # type: ignore[attr-defined]


def memory() -> None:
    with via.Nic("loop", checksum="crc") as nic, nic.create_region(4096) as region:
        assert_type(nic, via.Nic)
        vi = nic.create_vi()
        vi.post_recv(via.Descriptor.recv(region[:64]))
        assert_type(vi.recv_wait(1.0), via.Descriptor)
        assert_type(nic.register(np.zeros(4)), via.MemoryRegion)
        assert_type(viakit.via.Nic("loop").counters, via.Counters)
        vi.post_send(region)  # type: ignore[arg-type]
        nic.create_vi(reliabilty=1)  # type: ignore[call-arg]
