"""Status and traceback shown by `viakit run`: those of the rank that failed first, not of its victims."""

from __future__ import annotations

import socket
import subprocess
import sys
import textwrap

import pytest

from viakit.launch.leaving import CAUSED, FAILED, LEAVES, Ended, Note, first_of, in_doubt
from viakit.launch.rendezvous import Client, Meeting, RendezvousError

DEADLINE_S = 60.0
RANKS, FIRST = 4, 2

ENDS = {
    "exit": ("sys.exit(7)", 7, ""),
    "exception": ("raise ValueError('the planted one')", 1, "ValueError: the planted one"),
    "abort": ("comm.Abort(9)", 9, ""),
    "_exit": ("os._exit(5)", 5, ""),
    "killed": ("os.kill(os.getpid(), 9)", 137, ""),
}


def viakit_run(tmp_path, text: str, *words: str) -> subprocess.CompletedProcess[str]:
    path = tmp_path / "prog.py"
    path.write_text("import os, sys, time\nimport viakit\ncomm = viakit.world()\n" + textwrap.dedent(text), "utf-8")
    command = [sys.executable, "-m", "viakit", "run", "-n", str(RANKS), *words, str(path)]
    return subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)


@pytest.mark.parametrize("protocol", ["via", "bip", "tcp"])
@pytest.mark.parametrize("end", ENDS)
def test_the_first_failure_is_told_from_those_it_causes(tmp_path, protocol, end):
    what, status, said = ENDS[end]
    text = f"""
        comm.barrier()
        if comm.rank == {FIRST}:
            {what}
        comm.allreduce(1)
        """
    done = viakit_run(tmp_path, text, "--protocol", protocol)
    assert done.returncode == status, done.stderr
    assert f"rank {FIRST} ended " in done.stderr, done.stderr
    assert done.stderr.count("Traceback") == bool(said), done.stderr
    assert said in done.stderr


def test_ranks_that_end_by_themselves_when_another_has_left(tmp_path):
    text = f"""
        if comm.rank == {FIRST}:
            sys.exit(7)
        try:
            comm.allreduce(1)
        except Exception:
            sys.exit(3)
        """
    assert viakit_run(tmp_path, text).returncode == 7


@pytest.mark.parametrize("opening", ["viakit.world()", "viakit.launch.bootstrap()"])
def test_a_rank_that_is_slow_to_go_and_is_asked_to_is_no_victim_of_a_signal(tmp_path, opening):
    # Rank 0 is the first to go, and the last to be gone: what it registered before viakit runs after viakit's end.
    text = f"""
        import atexit, os, sys, time
        rank = int(os.environ["VIAKIT_RANK"])
        if rank == 0:
            atexit.register(time.sleep, 1.0)
        import viakit, viakit.launch
        opened = {opening}
        time.sleep(0.3 if rank else 0.0)
        sys.exit(3)
        """
    path = tmp_path / "slow.py"
    path.write_text(textwrap.dedent(text), "utf-8")
    command = [sys.executable, "-m", "viakit", "run", "-n", "2", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 3, done.stderr


@pytest.mark.parametrize("end", ["exit", "exception"])
def test_a_rank_that_takes_long_to_end_is_waited_for(tmp_path, end):
    # Longer than there is doubt: as on a busy machine, where a rank has said that it goes and gets no core to end.
    what, status, said = ENDS[end]
    path = tmp_path / "prog.py"
    text = f"""
        import atexit, os, signal, sys, time
        if os.environ["VIAKIT_RANK"] == "{FIRST}":
            atexit.register(time.sleep, 2.0)  # after viakit's own end
        import viakit
        comm = viakit.world()
        comm.barrier()
        if comm.rank == {FIRST}:
            {what}
        comm.allreduce(1)
        """
    path.write_text(textwrap.dedent(text), "utf-8")
    command = [sys.executable, "-m", "viakit", "run", "-n", str(RANKS), str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == status, done.stderr
    assert f"rank {FIRST} ended " in done.stderr, done.stderr
    assert done.stderr.count("Traceback") == bool(said), done.stderr
    assert said in done.stderr


@pytest.mark.parametrize("victim", ["comm.Abort(3)", "sys.exit(3)"])
def test_a_rank_that_aborts_and_takes_long_to_end_is_waited_for(tmp_path, victim):
    text = f"""
        class Slow:
            def flush(self):
                time.sleep(1.5)  # longer than there is doubt

        comm.barrier()
        if comm.rank == {FIRST}:
            sys.stdout = Slow()
            comm.Abort(9)
        try:
            comm.allreduce(1)
        except Exception:
            {victim}
        """
    done = viakit_run(tmp_path, text)
    assert done.returncode == 9, done.stderr
    assert f"rank {FIRST} ended with exit status 9" in done.stderr, done.stderr


def test_a_chain_of_exceptions_has_the_same_first_cause(tmp_path):
    text = f"""
        if comm.rank == {FIRST}:
            raise ValueError("the planted one")
        try:
            comm.allreduce(1)
        except Exception as error:
            raise RuntimeError("a step failed") from error
        """
    done = viakit_run(tmp_path, text)
    assert done.returncode == 1
    assert f"rank {FIRST} ended " in done.stderr, done.stderr
    assert done.stderr.count("Traceback") == 1, done.stderr


def test_who_is_at_its_end_already_is_not_the_first_if_all_is_well_there(tmp_path):
    text = f"""
        comm.barrier()
        if comm.rank == {FIRST}:
            raise ValueError("the planted one")
        """
    done = viakit_run(tmp_path, text)
    assert done.returncode == 1
    assert f"rank {FIRST} ended with exit status 1" in done.stderr, done.stderr
    assert "ValueError: the planted one" in done.stderr


def test_a_failure_without_another_cause_is_shown(tmp_path):
    text = """
        if comm.rank == 0:
            viakit.comm.close_all()      # well, and others wait for it
            time.sleep(100)
        if comm.rank == 1:
            comm.recv(source=0)
        time.sleep(100)
        """
    done = viakit_run(tmp_path, text)
    assert done.returncode == 1
    assert "rank 1 ended with exit status 1; the 3 still running are ended" in done.stderr, done.stderr
    assert done.stderr.count("Traceback") == 1
    assert "ERR_PROC_ABORTED" in done.stderr


def test_with_labels_all_is_shown(tmp_path):
    text = """
        if comm.rank == 0:
            sys.exit(7)
        comm.recv(source=0)
        """
    done = viakit_run(tmp_path, text, "--label")
    assert done.returncode == 7
    assert "Traceback" in done.stderr


# ---- how it is decided


def ended(rank: int, status: int, why: int, when: int) -> Ended:
    return Ended(rank, status, Note(why, when))


@pytest.mark.parametrize(
    ("failures", "first"),
    [
        ([ended(0, 1, FAILED, 5), ended(1, 1, FAILED, 4)], 1),
        ([ended(0, 1, CAUSED, 3), ended(1, 7, LEAVES, 4)], 1),
        ([ended(0, 1, CAUSED, 3), ended(1, 1, CAUSED, 2)], 1),
        ([ended(0, 1, LEAVES, 3), ended(1, -9, LEAVES, 9)], 1),  # seen late, but no rank of the job can have caused it
    ],
)
def test_order(failures, first):
    assert first_of(failures).rank == first


@pytest.mark.parametrize(
    ("failure", "running", "doubt"),
    [
        (ended(0, 1, FAILED, 5), [None, None], False),
        (ended(0, 1, FAILED, 5), [Note(LEAVES, 4), None], True),
        (ended(0, 1, FAILED, 5), [Note(LEAVES, 6), Note(CAUSED, 4)], False),
        (ended(0, 1, CAUSED, 5), [None], True),
        (ended(0, 1, CAUSED, 5), [Note(CAUSED, 4)], False),
        (ended(0, 1, CAUSED, 5), [], False),
        (ended(0, -11, LEAVES, 5), [Note(LEAVES, 4)], False),
    ],
)
def test_doubt(failure, running, doubt):
    assert in_doubt([failure], running) == doubt


def test_notes_come_beside_exchanges():
    meeting, pairs = Meeting(2), [socket.socketpair() for _ in range(2)]
    clients = []
    for rank, (near, far) in enumerate(pairs):
        meeting.admit(rank, near)
        clients.append(Client(far, 2))
    clients[1].note(CAUSED, 1234)
    clients[1].note(LEAVES, 9999)  # the first counts
    pairs[0][1].sendall(b"VKX1" + (1).to_bytes(4, "little") + b"x")
    clients[0].note(FAILED, 1 << 60)  # also of a rank that was waiting
    meeting.handle(set(meeting.interest()))
    assert meeting.notes == {0: Note(FAILED, 1 << 60), 1: Note(CAUSED, 1234)}
    pairs[1][1].sendall(b"VKL1" + (11).to_bytes(4, "little") + bytes(11))
    meeting.handle(set(meeting.interest()))
    with pytest.raises(RendezvousError, match="rank 1 speaks another protocol"):
        clients[0].exchange(b"", 10.0)
    for client in clients:
        client.close()
        client.note(LEAVES, 0)  # no listener: no harm
    meeting.close()
