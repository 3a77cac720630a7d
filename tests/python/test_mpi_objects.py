"""MPI's objects other than communicators: handles, info, errors, attributes, sessions, generalised requests."""

import array
import copy
import pickle
import threading

import pytest
from comm_job import job

from viakit.mpi import MPI

NULLS = [
    "INFO_NULL",
    "ERRHANDLER_NULL",
    "SESSION_NULL",
    "GROUP_NULL",
    "OP_NULL",
    "FILE_NULL",
    "MESSAGE_NULL",
    "REQUEST_NULL",
    "COMM_NULL",
]


@pytest.mark.parametrize("name", NULLS)
def test_null_handles(name):
    null = getattr(MPI, name)
    kind = type(null)
    assert not null
    assert kind() == null
    assert kind(null) == null
    assert null != MPI.Status()
    assert pickle.loads(pickle.dumps(null)) is null
    assert copy.deepcopy(kind(null)) == null
    assert kind.fromhandle(null.handle) == null
    with pytest.raises(TypeError):
        hash(null)
    with pytest.raises(TypeError):
        kind("abc")
    null.free()
    assert not null


def test_second_handles_and_numbers():
    info = MPI.Info.Create({"key": "value"})
    again = MPI.Info(info)
    assert again == info
    assert again is not info
    assert MPI.Info.fromhandle(info.handle)["key"] == "value"
    with pytest.raises(ValueError, match="no Op has the handle"):
        MPI.Op.fromhandle(info.handle)
    info.Free()
    assert not info
    assert again["key"] == "value"
    with pytest.raises(ValueError, match="no Info has"):
        MPI.Info.fromhandle(again.handle + 1000)
    request = MPI.COMM_SELF.Recv_init(bytearray(1), 0)
    assert MPI.Prequest.f2py(request.py2f()) == request
    request.Free()
    assert request == MPI.REQUEST_NULL


def test_numbers_of_communicators():
    comm = MPI.COMM_SELF.Dup()
    assert MPI.Comm.fromhandle(comm.handle) == comm
    assert MPI.Intracomm.f2py(MPI.COMM_WORLD.py2f()) == MPI.COMM_WORLD
    assert comm.handle != MPI.COMM_SELF.handle
    number = comm.handle
    comm.Free()
    with pytest.raises(ValueError, match="no Comm has the handle"):
        MPI.Comm.fromhandle(number)


def test_fatal_errors_end_the_job(program):
    done = job(2, program("""
    comm.Set_errhandler(MPI.ERRORS_ARE_FATAL)
    if rank == 1:
        comm.Send(b"", 7)
    comm.Barrier()
    """))  # fmt: skip
    assert done.returncode == MPI.ERR_RANK
    assert "ERRORS_ARE_FATAL" in done.stderr
    assert "MPI_ERR_RANK" in done.stderr


def test_a_second_handle_of_a_request_completes_it():
    received = bytearray(1)
    first = MPI.COMM_SELF.Irecv(received, 0, 5)

    class Mine(MPI.Request):
        pass

    second = Mine(first)
    assert second == first
    assert not MPI.Request.Testall([second])
    MPI.COMM_SELF.Send(b"x", 0, 5)
    assert MPI.Request.Waitany([MPI.REQUEST_NULL, second]) == 1
    assert received == b"x"
    assert not first
    assert not second


def test_info():
    info = MPI.Info.Create([("a", "1")])
    info.update(b="2")
    assert dict(info) == {"a": "1", "b": "2"}
    assert pickle.loads(pickle.dumps(info)).items() == info.items()
    assert info.pop("c", None) is None
    for call, name in (
        (lambda: info.Delete("c"), "ERR_INFO_NOKEY"),
        (lambda: info.Set("k" * 300, ""), "ERR_INFO_KEY"),
        (lambda: info.Set("k", "v" * 2000), "ERR_INFO_VALUE"),
        (lambda: info.Get_nthkey(2), "ERR_ARG"),
        (lambda: MPI.INFO_NULL.Set("a", "b"), "ERR_INFO"),
        (MPI.INFO_ENV.Free, "ERR_INFO"),
    ):
        with pytest.raises(MPI.Exception) as caught:
            call()
        assert caught.value.Get_error_class() == getattr(MPI, name)
    assert MPI.INFO_ENV["command"]


def test_error_codes():
    added = MPI.Add_error_class()
    code = MPI.Add_error_code(added)
    assert added > MPI.ERR_LASTCODE
    assert MPI.COMM_WORLD.Get_attr(MPI.LASTUSEDCODE) == code
    MPI.Add_error_string(code, "it is late")
    problem = MPI.Exception(code)
    assert (problem.error_class, str(problem), problem) == (added, "it is late", code)
    assert MPI.Exception(MPI.SUCCESS) < problem
    for call in (lambda: MPI.Remove_error_class(added), lambda: MPI.Remove_error_code(code)):
        with pytest.raises(MPI.Exception):
            call()
    MPI.Remove_error_string(code)
    MPI.Remove_error_code(code)
    MPI.Remove_error_class(added)
    assert MPI.Get_error_class(code) == MPI.ERR_UNKNOWN


def test_error_handlers_are_called_before_the_exception():
    comm, seen = MPI.COMM_SELF.Dup(), []
    handler = MPI.Comm.Create_errhandler(lambda target, code: seen.append((target == comm, code)))
    comm.Set_errhandler(handler)
    with pytest.raises(MPI.Exception):
        comm.Send(b"", 7)
    assert seen == [(True, MPI.ERR_RANK)]
    part = comm.Dup()
    with pytest.raises(MPI.Exception):
        part.send(None, 7)
    assert len(seen) == 2
    comm.Set_errhandler(MPI.ERRORS_RETURN)
    with pytest.raises(MPI.Exception):
        comm.Send(b"", 7)
    assert len(seen) == 2
    with pytest.raises(MPI.Exception, match="ERRHANDLER_NULL cannot be set"):
        comm.Set_errhandler(MPI.ERRHANDLER_NULL)
    for one in (part, comm, handler):
        one.Free()


def test_attributes():
    comm, deleted = MPI.COMM_SELF.Dup(), []
    copied = MPI.Comm.Create_keyval(lambda _comm, _key, value: value + 1, lambda *args: deleted.append(args[2]))
    kept = MPI.Comm.Create_keyval(True)
    comm.Set_attr(copied, 1)
    comm.Set_attr(kept, "x")
    twin = comm.Dup()
    assert (twin.Get_attr(copied), twin.Get_attr(kept)) == (2, "x")
    twin.Free()
    comm.Set_attr(copied, 5)
    assert deleted == [2, 1]
    comm.Free()
    assert deleted == [2, 1, 5]
    with pytest.raises(MPI.Exception, match="is no key for attributes"):
        MPI.COMM_WORLD.Get_attr(MPI.KEYVAL_INVALID)
    assert MPI.COMM_WORLD.Get_attr(MPI.TAG_UB) == 2**31 - 1


def test_attributes_of_datatypes():
    deleted = []
    copied = MPI.Datatype.Create_keyval(lambda _type, _key, value: value + 1, lambda *args: deleted.append(args[2]))
    made = MPI.INT.Create_contiguous(2)
    made.Set_attr(copied, 1)
    assert MPI.Datatype(made).Get_attr(copied) == 1
    twin = made.Dup()
    assert twin.Get_attr(copied) == 2
    twin.Free()
    made.Free()
    assert deleted == [2, 1]
    with pytest.raises(MPI.Exception, match="DATATYPE_NULL or has been freed"):
        made.Get_attr(copied)
    with pytest.raises(MPI.Exception, match="is no key for attributes of a Comm"):
        MPI.COMM_SELF.Get_attr(copied)
    assert MPI.Datatype.Free_keyval(copied) == MPI.KEYVAL_INVALID


def test_buffered_sends_with_memory_that_viakit_allocates():
    comm = MPI.COMM_SELF
    comm.Flush_buffer()  # nothing is attached
    comm.Attach_buffer(MPI.BUFFER_AUTOMATIC)
    for i in range(3):
        comm.Bsend(bytes([i]) * 300_000, 0, 1)
        comm.bsend({"number": i}, 0, 2)
    there = bytearray(300_000)
    for i in range(3):
        comm.Recv(there, 0, 1)
        assert there == bytes([i]) * 300_000
        assert comm.recv(source=0, tag=2) == {"number": i}
    comm.Flush_buffer()
    assert comm.Detach_buffer() is MPI.BUFFER_AUTOMATIC
    with pytest.raises(MPI.Exception, match="buffer"):
        comm.Bsend(bytes(8), 0)


def test_functions_of_operations_get_buffers():
    kinds = []

    def add(one, two, datatype):
        kinds.extend([type(one), type(two)])
        assert datatype == MPI.INT
        two[:] = array.array("i", [x + y for x, y in zip(one.cast("i"), two.cast("i"), strict=True)])

    op = MPI.Op.Create(add)
    total = array.array("i", [10, 20])
    op.Reduce_local(array.array("i", [1, 2]), total)
    assert total.tolist() == [11, 22]
    assert kinds == [MPI.buffer, MPI.buffer]
    op.Free()


def test_sessions():
    session = MPI.Session.Init()
    names = [session.Get_nth_pset(i) for i in range(session.Get_num_psets())]
    assert names == ["mpi://WORLD", "mpi://SELF"]
    assert session.Get_pset_info("mpi://SELF")["mpi_size"] == "1"
    assert MPI.Group.Create_from_session_pset(session, "mpi://WORLD") == MPI.COMM_WORLD.Get_group()
    with pytest.raises(MPI.Exception, match="there is no process set 'x'"):
        session.Create_group("x")
    session.Finalize()
    with pytest.raises(MPI.Exception, match="null"):
        session.Get_num_psets()


def test_generalised_requests():
    request = MPI.Grequest.Start(lambda status, n: status.Set_tag(n), args=(7,))
    status = MPI.Status()
    assert request.test() == (False, None)
    thread = threading.Thread(target=request.complete, args=("done",))
    thread.start()
    assert request.wait(status) == "done"
    thread.join()
    assert status.tag == 7
    assert request == MPI.REQUEST_NULL


def test_status_as_numbers():
    status = MPI.Status()
    status.source, status.tag, status.count = 3, 4, 5
    assert MPI.Status.f2py(status.py2f()) == status
    memory = status.tomemory()
    memory[1] = 9
    assert status.tag == 9
    assert pickle.loads(pickle.dumps(status)) == status


def test_mpi_io_is_refused_clearly():
    with pytest.raises(NotImplementedError, match="viakit does not offer MPI-IO"):
        MPI.File.Open(MPI.COMM_SELF, "file")
    with pytest.raises(NotImplementedError, match="Register_datarep"):
        MPI.Register_datarep("x", None, None, None)
