"""Groups of ranks that are separate jobs: spawned ranks, ports and services; and messages in partitions."""

import os
import signal
import socket
import subprocess
import sys
import time
from types import SimpleNamespace

import pytest
from comm_job import DEADLINE_S, job
from waiting import LIMIT_S

from viakit.comm import dynamic
from viakit.launch.rendezvous import connect

CHILD = """
    parent = MPI.Comm.Get_parent()
    assert parent.is_inter and MPI.Comm.Get_parent() == parent
    assert comm.size == 2
    merged = parent.Merge(True)
    assert merged.allgather(rank) == [0, 1, 0, 1]
    big = parent.bcast(None, 0)
    parent.send((rank, int(big.sum()), comm.Get_attr(MPI.APPNUM)), 0)
    merged.Free()
    parent.Disconnect()
    assert MPI.Comm.Get_parent() == MPI.COMM_NULL
"""


def test_spawned_ranks_talk_to_their_parents(program, tmp_path):
    child = tmp_path / "child.py"
    os.rename(program(CHILD), child)
    done = job(2, program(f"""
    import sys
    codes = []
    child = comm.Spawn_multiple([sys.executable] * 2, [[{str(child)!r}]] * 2, [1, 1], errcodes=codes, root=1)
    assert codes == [[0], [0]] and (child.size, child.remote_size) == (2, 2)
    merged = child.Merge(False)
    assert merged.rank == rank and merged.allgather(rank) == [0, 1, 0, 1]
    child.bcast(np.ones(50_000), MPI.ROOT if rank == 0 else MPI.PROC_NULL)
    if rank == 0:
        assert sorted(child.recv() for _ in range(2)) == [(0, 50_000, 0), (1, 50_000, 1)]
    merged.Free()
    child.Disconnect()
    assert child == MPI.COMM_NULL
    for call, name in (
        (lambda: comm.Spawn("no-such-program"), "ERR_SPAWN"),
        (lambda: comm.Spawn(sys.executable, ["-c", "raise SystemExit(3)"]), "ERR_SPAWN"),
        (lambda: comm.Spawn(sys.executable, maxprocs=0), "ERR_ARG"),
    ):
        with raises(MPI.Exception, getattr(MPI, name)):
            call()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_port_of_a_meeting_stays_with_its_socket(monkeypatch):
    """From the moment its number is chosen, so that another process cannot take it before the meeting begins."""
    place = SimpleNamespace(address="127.0.0.1")
    monkeypatch.setattr("viakit.launch.bootstrap", lambda: place)
    group = SimpleNamespace(size=1, world=SimpleNamespace(seal=object()))
    listener, address = dynamic.meeting_listener(group)
    host, port = address.removeprefix("tcp:").rsplit(":", 1)
    with socket.socket() as other:
        other.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        with pytest.raises(OSError, match="in use"):
            other.bind((host, int(port)))
    listener.close()
    meeting, stop = dynamic.hold_meeting(group, bytes(32), 1)
    client, _ = connect(meeting.address, 0, 1, meeting.secret, LIMIT_S)
    assert client.exchange(b"alone", LIMIT_S) == [b"alone"]
    client.close()
    stop()


def _alive(process):
    try:
        with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


@pytest.mark.parametrize("victim", ["launcher", "rank"])
def test_spawned_ranks_end_with_the_job(program, tmp_path, victim):
    noted = tmp_path / "process"
    child = f"""
import os, time
from viakit.mpi import MPI
MPI.Comm.Get_parent()
open({str(noted)!r} + ".new", "w").write(str(os.getpid()))
os.rename({str(noted)!r} + ".new", {str(noted)!r})
time.sleep(600)
"""
    path = tmp_path / "child.py"
    path.write_text(child, encoding="utf-8")
    text = f"""
    import os, sys
    MPI.COMM_WORLD.Spawn(sys.executable, [{str(path)!r}])
    print(os.getpid(), flush=True)
    time.sleep(600)
    """
    command = [sys.executable, "-m", "viakit", "run", "-n", "1", program(text)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        rank = int(process.stdout.readline())
        deadline = time.monotonic() + DEADLINE_S
        while not noted.exists():
            assert time.monotonic() < deadline
            time.sleep(0.05)
        spawned = int(noted.read_text())
        assert _alive(spawned)
        os.kill(process.pid if victim == "launcher" else rank, signal.SIGKILL)
        while _alive(spawned):
            assert time.monotonic() < deadline, "the spawned rank survived its job"
            time.sleep(0.05)


def test_two_jobs_connect_by_the_name_of_a_service(program, tmp_path):
    service = f"viakit-test-{os.getpid()}"
    server = tmp_path / "server.py"
    os.rename(program(f"""
    port = MPI.Open_port() if rank == 0 else None
    if rank == 0:
        MPI.Publish_name({service!r}, port)
        with raises(MPI.Exception, MPI.ERR_SERVICE):
            MPI.Publish_name({service!r}, port)
    other = comm.Accept(port)
    assert other.remote_size == 1 and other.allgather(rank) == [0]
    other.Disconnect()
    if rank == 0:
        MPI.Unpublish_name({service!r}, port)
        MPI.Close_port(port)
        with raises(MPI.Exception, MPI.ERR_NAME):
            MPI.Lookup_name({service!r})
    """), server)  # fmt: skip
    command = [sys.executable, "-m", "viakit", "run", "-n", "2", str(server)]
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True) as process:
        done = job(1, program(f"""
    def found():
        try:
            return MPI.Lookup_name({service!r})
        except MPI.Exception:
            return None
    until(found)
    port = found()
    with raises(MPI.Exception, MPI.ERR_PORT):  # the secret in the name is wrong
        comm.Connect(port[:-64] + "0" * 64)
    with raises(MPI.Exception, MPI.ERR_PORT):
        comm.Connect("port")
    other = comm.Connect(port)
    assert other.remote_size == 2 and other.allgather(rank) == [0, 1]
    other.Disconnect()
    """))  # fmt: skip
        _, problems = process.communicate(timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert process.returncode == 0, problems


def test_partitions_of_a_message(program):
    done = job(2, program("""
    other, data, got = 1 - rank, np.arange(12.0) + rank, np.zeros(12)
    send, receive = comm.Psend_init(data, 6, other, 3), comm.Precv_init(got, 4, other, 3)
    for _ in range(3):
        got[:] = -1
        receive.Start()
        assert not receive.Parrived(0)
        send.Start()
        comm.Barrier()
        send.Pready_range(3, 5)  # the receiver's partitions 2 and 3
        until(lambda: receive.Parrived(2) and receive.Parrived(3))
        assert (got[6:] == data[6:] + 1 - 2 * rank).all()
        send.Pready_list([0, 1])
        send.Pready(2)
        with raises(MPI.Exception, MPI.ERR_ARG):
            send.Pready(2)
        receive.Wait()
        send.Wait()
        assert (got == data + 1 - 2 * rank).all()
    with raises(MPI.Exception, MPI.ERR_REQUEST):
        receive.Pready(0)
    send.Free()
    receive.Free()
    """))  # fmt: skip
    assert done.returncode == 0, done.stderr


def test_the_switch_that_makes_import_mpi4py_viakit(tmp_path):
    path = tmp_path / "prog.py"
    path.write_text(
        "import mpi4py\nfrom mpi4py import MPI\nprint(MPI.get_vendor()[0], MPI.COMM_WORLD.allreduce(1))\n"
        "try:\n    MPI.COMM_WORD\nexcept AttributeError as problem:\n    assert 'COMM_WORLD' in str(problem)\n"
        "mpi4py.__path__ = mpi4py.__path__[:1]  # as if mpi4py were not installed\n"
        "try:\n    import mpi4py.util\nexcept ImportError as problem:\n    assert 'pip install' in str(problem)\n"
        "else:\n    raise AssertionError\n",
        encoding="utf-8",
    )
    done = job(2, "--as-mpi4py", str(path))
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == ["viakit", "2"] * 2
