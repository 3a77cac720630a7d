"""Handles of communicators: subclasses, several handles of one communicator, null handles."""

import pickle

import pytest
from comm_job import job

from viakit.mpi import MPI


def test_a_null_handle_is_a_communicator_that_refuses_every_call():
    assert isinstance(MPI.COMM_NULL, MPI.Comm)
    assert MPI.Intracomm() == MPI.COMM_NULL
    assert type(MPI.Intracomm(MPI.COMM_NULL)) is MPI.Intracomm
    assert not MPI.COMM_NULL
    assert MPI.COMM_NULL.Get_name() == "MPI_COMM_NULL"
    assert pickle.loads(pickle.dumps(MPI.COMM_NULL)) is MPI.COMM_NULL
    data = bytearray(8)
    calls = {
        "Get_rank": (), "Get_size": (), "Get_group": (), "Dup": (), "Split": (), "Free": (), "Barrier": (),
        "Send": (data, 0), "Recv": (data, 0), "Isend": (data, 0), "Irecv": (data, 0), "send": (None, 0), "recv": (),
        "Bcast": (data,), "Allgather": (data, data), "Alltoall": (data, data), "Allreduce": (data, data),
        "Reduce": (data, data), "Gather": (data, data), "bcast": (None,), "allreduce": (1,), "Iprobe": (),
        "Is_inter": (), "Is_intra": (), "Get_topology": (),
    }  # fmt: skip
    for name, arguments in calls.items():
        with pytest.raises(MPI.Exception) as refused:
            getattr(MPI.COMM_NULL, name)(*arguments)
        assert refused.value.Get_error_class() == MPI.ERR_COMM, name
    MPI.COMM_NULL.free()


def test_a_handle_is_made_of_a_communicator_of_its_kind():
    for wrong in (1234, "abc", MPI.INT, MPI.COMM_WORLD):
        with pytest.raises(TypeError, match="Cartcomm"):
            MPI.Cartcomm(wrong)
    with pytest.raises(TypeError, match="Topocomm"):
        MPI.Topocomm(MPI.COMM_WORLD)
    MPI.Finalize()


@pytest.mark.parametrize("protocol", ["via", "tcp"])
def test_a_subclass_is_another_handle_of_the_same_communicator(program, protocol):
    text = """
    import pickle

    class Mine(MPI.Intracomm):
        def __new__(cls, comm=None, label=""):
            return super().__new__(cls, comm)

        def __init__(self, comm=None, label=""):
            self.label = label

        def total(self):
            return self.allreduce(self.rank)

        def allgather(self, sendobj):  # viakit does not use it for its own exchanges
            return ["replaced"]

    comm = MPI.COMM_WORLD
    one, two = Mine(comm, "one"), Mine(comm, "two")
    assert (one.label, two.label) == ("one", "two") and not hasattr(comm, "label")
    assert one == two == comm and one.total() == 3
    # Collectives of the handles have one count.
    for handle in (one, comm, two, comm, one):
        got = np.zeros(1)
        handle.Allreduce(np.ones(1), got)
        assert got[0] == 3 and handle.allreduce(1) == 3
        handle.Ibarrier().Wait()
    one.Send([np.full(1, comm.rank), MPI.LONG], (comm.rank + 1) % 3)
    here = np.zeros(1, "l")
    two.Recv(here, (comm.rank - 1) % 3)
    assert here[0] == (comm.rank - 1) % 3
    assert pickle.loads(pickle.dumps(comm)) is comm
    twin = pickle.loads(pickle.dumps(MPI.Intracomm(comm)))
    assert twin == comm and twin is not comm

    copy = one.Dup()
    assert type(copy) is Mine and copy != one and copy.total() == 3
    again = MPI.Comm(copy)
    copy.Free()
    assert not copy and not again and copy == MPI.COMM_NULL
    again.free()

    world = MPI.Intracomm(comm)
    world.free()  # releases this handle only
    comm.free()
    assert not world and comm and comm.allreduce(1) == 3

    grid = comm.Create_cart([3], periods=[True])
    other = MPI.Cartcomm(grid)
    assert other.dims == [3] and other.Shift(0, 1) == grid.Shift(0, 1) and type(other.Dup()) is MPI.Cartcomm
    """
    done = job(3, program(text), protocol=protocol)
    assert done.returncode == 0, done.stderr
