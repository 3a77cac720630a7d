"""The laboratory: real measurements by real workers, observed, stopped, and abandoned."""

from __future__ import annotations

import asyncio
import functools
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
import waiting
from kernel import notebook, printed, shown
from leftovers import marked

from viakit import lab
from viakit.lab import _front, _job, _worker
from viakit.measure import Result, result
from viakit.measure.sweep import UsageError

until = functools.partial(waiting.until, limit_s=60.0)


pytestmark = pytest.mark.usefixtures("lab_text")


def ready(*protocols, **settings):
    """A comparison that is started by hand, so that nothing waits for it."""
    settings = {"sizes": "8,4K", "seconds": 1.0, **settings}
    return lab.compare(*(protocols or ("unix", "via-shm")), start=False, **settings)


def measuring(run):
    run.start()
    until(lambda: run.job.series() or not run.job.running, "the first point")
    return run


def test_plain_python_measures_and_prints_the_table(capsys):
    run = lab.compare("unix", "via-shm", sizes="8,4K", seconds=0.5)
    assert run.state == "done"
    said = capsys.readouterr().out
    assert "One-way time" in said
    assert "via-shm" in said
    result.validate(run.result)
    assert isinstance(run.result, Result)
    assert [point["nbytes"] for point in run.result.series("unix")["points"]] == [8, 4096]
    assert run.result["command"] == "viakit sweep unix via-shm --sizes 8,4096 --seconds 0.5"
    assert run.wait() == run.result


def test_it_runs_beside_and_points_grow(mark):
    for seconds in (1.5, 6, 24):  # a busy machine shows few steps of a short measurement
        run = ready(seconds=seconds)
        assert run.state == "ready"
        run.start()
        assert run.state == "running"
        assert lab.running() == "comparing unix, via-shm"
        seen = []
        until(
            lambda run=run, seen=seen: (
                seen.append(sum(len(one["bursts_s"]) for s in run.job.series() for one in s["points"]))
                or not run.job.running
            ),
            limit_s=120,
        )
        if len(set(seen)) > 3:
            break
    assert len(set(seen)) > 3  # it grew while it was measured
    assert run.progress["fraction"] == 1.0
    assert run.wait()["complete"]
    assert not marked(mark)


def test_awaiting_leaves_the_event_loop_free():
    async def both():
        run = ready()
        run.start()
        ticks = 0

        async def tick():
            nonlocal ticks
            while run.job.running:
                ticks += 1
                await asyncio.sleep(0.01)

        found, _ = await asyncio.gather(_result(run), tick())
        return found, ticks

    async def _result(run):
        return await run

    found, ticks = asyncio.run(both())
    assert found["complete"]
    assert ticks > 5


def test_stopping_keeps_what_was_measured_and_leaves_nothing(mark):
    run = measuring(ready(seconds=600))
    half = run.result
    assert not half["complete"]
    result.validate(half)
    assert marked(mark)
    run.stop()
    assert run.state == "stopped"
    assert not run.wait()["complete"]
    assert any(one["points"] for one in run.wait()["series"])  # the protocols are measured in turns, in any order
    assert not marked(mark)


def test_a_wait_gives_up_and_the_measurement_goes_on():
    run = measuring(ready(seconds=600))
    with pytest.raises(TimeoutError, match="still being measured"):
        run.wait(0.01)
    assert run.state == "running"


def test_interrupting_a_wait_stops_it(mark):
    run = measuring(ready(seconds=600))

    def waits():
        """Whether the main thread is at the place where it waits for the job."""
        frame = sys._current_frames()[threading.main_thread().ident]
        while frame is not None and frame.f_code is not _job.Job.wait.__code__:
            below, frame = frame, frame.f_back
        return frame is not None and below.f_code is threading.Event.wait.__code__

    def interrupt():
        until(waits, "the wait")
        os.kill(os.getpid(), signal.SIGINT)

    interrupting = threading.Thread(target=interrupt)
    interrupting.start()
    with pytest.raises(KeyboardInterrupt):
        run.wait()
    interrupting.join()
    assert run.state == "stopped"
    assert not marked(mark)


def test_two_at_once_in_one_process():
    run = measuring(ready(seconds=600))
    with pytest.raises(lab.Busy, match=r"another measurement is running \(comparing unix, via-shm.*lab\.stop"):
        ready().start()
    assert run.state == "running"
    lab.stop()
    assert run.state == "stopped"
    again = ready(seconds=0.2)
    again.start()
    assert again.wait()["complete"]


def test_two_at_once_in_two_processes():
    run = measuring(ready(seconds=600))
    code = "from viakit import lab\ntry: lab.compare('unix', sizes='8', seconds=0.1)\nexcept lab.Busy as e: print(e)"
    other = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True)
    assert f"process {run.job.pid} of this user is measuring" in other.stdout
    assert "lab.stop()" in other.stdout


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_kernel_that_dies_takes_everything_with_it(mark, number):
    code = (
        "from viakit import lab; r = lab.compare('unix', sizes='8', seconds=600, start=False); r.start()\n"
        "print(r.job._folder, flush=True); r.wait()"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as kernel:
        folder = Path(kernel.stdout.readline().strip())
        # Kernel, worker, both sides; and the kernel has removed the socket, to which the worker is connected.
        until(lambda: len(marked(mark)) >= 4 and not folder.exists(), "worker and pair run")
        kernel.send_signal(number)
        kernel.wait()
        until(lambda: not marked(mark), "nothing is left")
    assert folder.name.startswith("viakit-lab-")
    assert not folder.exists()


def test_a_worker_that_dies_is_told():
    run = measuring(ready(seconds=600))
    os.kill(run.job.pid, signal.SIGKILL)
    with pytest.raises(lab.LabError, match="ended unexpectedly"):
        run.wait()
    assert run.state == "failed"
    assert run.result["series"]  # what had come is still there
    ready(seconds=0.2).start()  # and the next may start


def test_what_cannot_be_measured_says_why(capsys):
    with pytest.raises(lab.LabError, match="nosuch0"):
        lab.compare("via-eth", sizes="64", hosts="local", interface="nosuch0", seconds=0.1)
    with pytest.raises(ValueError, match="did you mean tcp"):
        lab.compare("tpc")
    with pytest.raises(UsageError, match="--mode"):
        lab.compare("tcp", mode="pong")
    with pytest.raises(TypeError, match=r"no setting 'size'; it has .*mtu"):
        lab.compare("tcp", size=8)
    with pytest.raises(ValueError, match="'64,4K' or '1:1M'"):
        lab.compare("tcp", sizes=[8, "x"])
    with pytest.raises(lab.LabError, match="the measurement has not been started"):
        ready().wait()
    with pytest.raises(result.ResultError):
        lab.compare("tcp", against=["/nonexistent.json"])
    assert lab.running() is None


def test_the_front_end_is_seen(monkeypatch):
    monkeypatch.setenv("VIAKIT_LAB", "windows")
    with pytest.raises(ValueError, match="widgets, static, text"):
        _front.mode()
    monkeypatch.delenv("VIAKIT_LAB")
    assert _front.mode() == "text"
    monkeypatch.setitem(sys.modules, "ipywidgets", None)
    assert "ipywidgets" in _front.why_not_widgets()
    assert "pip install 'viakit[lab]'" in _front.why_not_widgets()


def test_the_worker_sends_batches_between_bursts_and_waits_until_they_are_drawn():
    import zmq

    context = zmq.Context()
    kernel = context.socket(zmq.PAIR)
    kernel.linger = 0
    port = kernel.bind_to_random_port("tcp://127.0.0.1")
    wire = _worker.Wire(f"tcp://127.0.0.1:{port}", threading.Event())
    got = []

    def draw():
        while kernel.poll(2000):
            message = json.loads(kernel.recv())
            if "batch" not in message:
                break
            got.append(message)
            kernel.send(json.dumps({"drawn": message["batch"]}).encode())

    thread = threading.Thread(target=draw)
    thread.start()
    began = time.monotonic()
    n = 0
    while n < 100 or time.monotonic() - began < 0.5:
        n += 1
        wire.point("a", {"protocol": "a"}, {"nbytes": 8, "n": n})
        wire.progress(0.5, 1.0, "half")
    used = time.monotonic() - began
    wire.send({"last": True})
    thread.join()
    wire.close()
    kernel.close()
    context.term()
    assert 1 <= len(got) <= used / _worker.LEAST_INTERVAL_S + 1
    assert all(len(message["points"]) == 1 for message in got)  # of one point only its newest state
    assert n > len(got)


# ------------------------------------------------------------------------------------------------ in a kernel


START = "from viakit import lab\nrun = lab.compare('unix', 'via-shm', sizes='8,4K', seconds=1.5)"


def test_in_a_notebook_curves_grow_while_a_cell_runs():
    begun, watched, buttons, again = notebook(
        START + "\nprint(run.state)",
        # A long measurement, which is stopped when its curves have grown: a busy machine draws a short one only once.
        "import time\nseen = set()\nend = time.monotonic() + 150\nresult = run.wait()\ndata = run.panel.figure.data\n"
        "grows = lab.compare('unix', 'via-shm', sizes='8,4K', seconds=600)\n"
        "while grows.state == 'running' and len(seen) <= 3 and time.monotonic() < end:\n"
        "    seen.add(sum(sum(trace.y or ()) for trace in grows.panel.figure.data if trace.name))\n"
        "    time.sleep(0.02)\n"
        "grows.stop()\n"
        "named = [t for t in data if t.name]\n"
        "print(len(seen) > 3, result['complete'], sorted(t.name for t in named), len(named[0].x))",
        "p = run.panel\np.size.value = 8\nprint('copies' in p.counters.value, p.stop.disabled)\n"
        "p._on_keep(); p.seconds.value = 600; p.start.click()\n"
        "print(run.state, p.stop.disabled)\np.stop.click()\nrun.job.wait()\n"
        "print(run.state, 'stopped' in p.progress.text.value, len(p.figure.data))\n"
        "p.sizes.value = 'many'; p.start.click()\nprint(p.progress.text.value)",
        "run",
        mode="widgets",
    )
    assert printed(begun) == "running\n"
    assert shown(begun, "application/vnd.jupyter.widget-view+json")
    assert printed(watched) == f"True True {['unix'] * 3 + ['via-shm'] * 3} 2\n"
    lines = printed(buttons).splitlines()
    assert lines[0] == "True True"
    assert lines[1].startswith("running")
    assert lines[2].startswith("stopped True")
    assert "is not a message size" in lines[3]
    assert shown(again, "application/vnd.jupyter.widget-view+json")


def test_without_widgets_the_same_call_gives_a_picture_and_a_table():
    outputs, later = notebook(START + "\nrun", "run")
    for one in (outputs, later):
        (page,) = shown(one, "text/html")
        assert '<svg role="img"' in page
        assert "<table" in page


def test_missing_widgets_are_no_error():
    (outputs,) = notebook(
        "import sys; sys.modules['ipywidgets'] = None\n" + START + "\nprint(run.state)", JPY_SESSION_NAME="a.ipynb"
    )
    assert printed(outputs) == "done\n"
    assert shown(outputs, "text/html")


LOCK_HOLDER = """
import os, socket, sys
held = socket.socket(socket.AF_UNIX)
if len(sys.argv) > 2:
    os.setgroups([])
    os.setuid(int(sys.argv[2]))
held.bind(chr(0) + sys.argv[1])
held.listen()
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize(("user", "whose"), [([], "of this user"), (["65534"], "of user 65534")], ids=["own", "other"])
def test_the_lock_names_the_process_that_holds_it_and_its_user(monkeypatch, user, whose):
    """Another user can bind the name, and must not appear as one of the user's own notebooks."""
    if user and os.geteuid() != 0:
        pytest.skip("only root may start a process of another user")
    monkeypatch.setenv("VIAKIT_LAB_FLOOR", f"/test-lock-{os.getpid()}")
    name = f"viakit/lab/{os.getuid()}/test-lock-{os.getpid()}"
    command = [sys.executable, "-c", LOCK_HOLDER, name, *user]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as holder:
        assert holder.stdout.readline() == "held\n"
        with pytest.raises(BlockingIOError, match=rf"^process {holder.pid} {whose} is measuring"):
            _worker.acquire_lock()
        holder.stdin.close()
    _worker.acquire_lock().close()
