"""A world that is closed or aborted while calls wait in it: by a signal handler in a call, or by another thread."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import pytest
from comm_job import DEADLINE_S

CALLS = {"receive": "comm.Recv(room, 0)", "request": "comm.Irecv(room, 0).Wait()", "collective": "comm.Barrier()"}
ENDS = {
    "signal, close": ("signalled(comm.world.close)", "interrupted a call"),
    "signal, abort": ("signalled(comm.world.abort)", "has been closed"),
    "thread, close": ("when_it_waits(lambda: comm.world.close(1))", "has been closed"),
    "thread, abort": ("when_it_waits(comm.world.abort)", "has been closed"),
}


@pytest.mark.parametrize(
    ("call", "end"),
    [
        ("receive", "signal, close"),
        ("collective", "signal, abort"),
        ("request", "thread, close"),
        ("receive", "thread, abort"),
    ],
)
def test_calls_that_wait_end_with_an_error(tmp_path, call, end):
    how, said = ENDS[end]
    path = tmp_path / "prog.py"
    path.write_text(
        textwrap.dedent(f"""
        import os, signal, sys, threading, time
        import numpy as np
        from viakit.mpi import MPI

        def when_it_waits(act):
            def look():  # until the main thread has been at one place of its call for a while
                places = []
                while len(places) < 5 or len(set(places[-5:])) > 1:
                    time.sleep(0.01)
                    frame = sys._current_frames()[threading.main_thread().ident]
                    places += [(frame.f_code, frame.f_lineno)] if calls else []
                act()

            threading.Thread(target=look, daemon=True).start()

        def signalled(handler):
            signal.signal(signal.SIGALRM, lambda number, frame: handler())
            when_it_waits(lambda: os.kill(os.getpid(), signal.SIGALRM))

        comm, room, over, calls = MPI.COMM_WORLD, np.zeros(4), {str(tmp_path / "over")!r}, False
        comm.Barrier()
        if comm.rank == 0:
            deadline = time.monotonic() + 45
            while not os.path.exists(over) and time.monotonic() < deadline:
                time.sleep(0.01)
            os._exit(0)
        {how}
        try:
            calls = True
            {CALLS[call]}
        except MPI.Exception as error:
            print(error, flush=True)
        open(over, "w").close()
        os._exit(0)
        """),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "viakit", "run", "-n", "2", str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert done.returncode == 0, done.stderr
    assert said in done.stdout, (done.stdout, done.stderr)


DAEMONS = {
    "receive": "comm.Recv(room, comm.rank)",
    "objects": "comm.recv(source=comm.rank)",
    "poll": "comm.Iprobe()",
    "send": "comm.Ssend(np.zeros(100000), comm.rank)",
    "request": "comm.Irecv(room, comm.rank).Wait()",
}


@pytest.mark.parametrize("protocol", ["via", "tcp"])
@pytest.mark.parametrize("call", DAEMONS)
def test_a_daemon_thread_in_a_call_at_exit_says_nothing(tmp_path, call, protocol):
    """Its messages are to its own rank, because a call to a rank that has left fails for this reason."""
    path = tmp_path / "prog.py"
    path.write_text(
        textwrap.dedent(f"""
        import threading
        import numpy as np
        from viakit.mpi import MPI

        comm, room = MPI.COMM_WORLD, np.zeros(4)
        begun = threading.Event()

        def work():
            comm.Barrier()
            begun.set()
            while True:
                {DAEMONS[call]}

        threading.Thread(target=work, daemon=True).start()
        begun.wait()
        """),
        encoding="utf-8",
    )
    command = [sys.executable, "-m", "viakit", "run", "-n", "2", "--protocol", protocol, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=DEADLINE_S)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
