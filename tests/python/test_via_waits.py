"""All waiting calls: time-outs, Ctrl-C, the GIL, and asynchronous errors during a wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest
from waiting import LIMIT_S, until

from viakit import errors, via


@pytest.fixture
def nic():
    with via.Nic("loop:waits") as nic:
        yield nic


# ---------------------------------------------------------------- time-outs


def test_time_outs(nic, pair):
    a, _ = pair
    a.post_recv(via.Descriptor.recv(owner=a))
    with nic.create_cq(4) as cq:
        for wait in (a.recv_wait, a.spin_recv, cq.wait, lambda timeout_s: nic.connect_wait("nobody", timeout_s)):
            for timeout_s in (0, 0.001, 0.06):
                begin = time.monotonic()
                with pytest.raises(errors.ViaTimeoutError) as caught:
                    wait(timeout_s)
                assert isinstance(caught.value, TimeoutError)
                assert time.monotonic() - begin >= timeout_s
    assert a.n_recvs_posted == 1, "a time-out takes nothing"


def test_a_time_out_says_what_was_waited_for(nic, pair):
    """... and not what some earlier call had to say."""
    a, _ = pair
    a.post_recv(via.Descriptor.recv(owner=a))
    with nic.create_cq(4) as cq, nic.create_vi() as other:
        for wait, said in (
            (lambda: a.recv_wait(0.02), "no receive completed .*0.02 s"),
            (lambda: a.spin_recv(0.02), "no receive completed .*0.02 s"),
            (lambda: cq.wait(0.02), "nothing completed on .*within 0.02 s"),
            (
                lambda: nic.connect_wait("x", 0.02),
                "no connection request for discriminator b'x' of loop:waits within 0.02 s",
            ),
            (lambda: other.connect_peer(nic.address / "x", "y", 0.02), "no peer requested this VI within 2. ms"),
        ):
            with pytest.raises(errors.ViaError, match="foo"):
                via.Nic("foo")
            with pytest.raises(errors.ViaTimeoutError, match=said):
                wait()


@pytest.mark.parametrize("timeout_s", [-1, float("nan"), -1e-9])
def test_times_that_make_no_sense(nic, pair, timeout_s):
    a, _ = pair
    a.post_recv(via.Descriptor.recv(owner=a))
    for wait in (a.recv_wait, a.spin_recv, lambda timeout_s: nic.connect_wait("nobody", timeout_s)):
        with pytest.raises(ValueError, match="timeout_s"):
            wait(timeout_s)


def test_a_connection_needs_time(nic):
    with nic.create_vi() as vi, pytest.raises(ValueError):
        vi.connect(nic.address / "x", timeout_s=0)
    with nic.create_vi() as vi, pytest.raises(TypeError, match="Address"):
        vi.connect("x")
    with nic.create_vi() as vi, pytest.raises(errors.NoMatchError):
        vi.connect(nic.address / "x", timeout_s=0.1, retry=True)


def test_no_server_accepts(nic):
    found = []
    with nic.create_vi() as vi:
        waiting = threading.Thread(target=lambda: found.append(nic.connect_wait("slow", LIMIT_S)))
        waiting.start()
        until(lambda: nic.snapshot()["connections"], "the wait")  # or the request may end without a match
        with pytest.raises(errors.ViaTimeoutError):
            vi.connect(nic.address / "slow", 0.3, retry=True)
        waiting.join(LIMIT_S)
        assert vi.state is via.ViState.IDLE
        with nic.create_vi() as late, pytest.raises(errors.ViaTimeoutError):
            found[0].accept(late)
        with pytest.raises(errors.ClosedError, match="answered"):
            found[0].reject()


# ---------------------------------------------------------------- signals

WAITS = {
    "recv_wait": "vi.post_recv(receive); begin(); vi.recv_wait()",
    "recv_wait_long": "vi.post_recv(receive); begin(); vi.recv_wait(1000)",
    "spin_recv": "vi.post_recv(receive); begin(); vi.spin_recv()",
    "recv": "begin(); vi.recv(bytearray(8))",
    "cq": "begin(); nic.create_cq(4).wait()",
    "connect_wait": "begin(); nic.connect_wait('nobody')",
    "connect": (
        "threading.Thread(target=lambda: keep.append(nic.connect_wait('x', 60)), daemon=True).start(); "
        "begin(); other.connect(nic.address / 'x', None, retry=True)"
    ),
    "connect_retry": "begin(); other.connect(nic.address / 'nobody', None, retry=True)",
}


@pytest.mark.parametrize("how", WAITS)
def test_ctrl_c_ends_every_wait(how):
    program = textwrap.dedent(
        """
        import threading, time
        from viakit import via

        def begin():
            print("waiting", flush=True)

        keep = []
        with via.Nic("loop:signal") as nic:
            vi, other, third = nic.create_vi(), nic.create_vi(), nic.create_vi()
            asking = threading.Thread(target=lambda: third.connect(nic.address / "pair", 20, retry=True))
            asking.start()
            nic.connect_wait("pair", 20).accept(vi)
            asking.join(20)
            receive = via.Descriptor.recv(owner=vi)
            try:
                WAIT
            except KeyboardInterrupt:
                print("interrupted", time.monotonic(), flush=True)
            assert vi.state is via.ViState.CONNECTED
            for request in keep:
                request.close()
        print("closed", {k: n for k, n in via.live_objects().items() if n}, flush=True)
        """
    ).replace("WAIT", WAITS[how])
    child = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert child.stdout.readline() == "waiting\n"
        # It sleeps or spins by now, or is about to: a signal must end the wait in either case.
        time.sleep(0.05)  # not for a condition: to hit the middle of the wait rather than its beginning
        sent = time.monotonic()
        child.send_signal(signal.SIGINT)
        out, err = child.communicate(timeout=LIMIT_S)
    finally:
        child.kill()
        child.wait()
    words = out.split()
    assert words[0] == "interrupted", out + err
    assert out.endswith("closed {}\n"), out + err
    assert child.returncode == 0, err
    print(f"{how}: interrupted after {1000 * (float(words[1]) - sent):.1f} ms")


def test_a_handler_that_returns_does_not_end_a_wait(nic, pair):
    a, b = pair
    seen = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: seen.append(number))
    try:
        a.post_recv(via.Descriptor.recv(owner=a))

        def poke():
            for n in range(3):
                os.kill(os.getpid(), signal.SIGUSR1)
                until(lambda n=n: len(seen) > n, "the handler")
            b.send(b"", timeout_s=LIMIT_S)

        poking = threading.Thread(target=poke)
        poking.start()
        assert a.recv_wait(LIMIT_S).length == 0
        poking.join(LIMIT_S)
        assert len(seen) == 3
    finally:
        signal.signal(signal.SIGUSR1, before)


# ---------------------------------------------------------------- closing


@pytest.mark.parametrize("spin", [False, True])
def test_threads_that_wait_on_a_vi_that_is_closed_get_its_descriptors_or_the_reason(nic, spin):
    """Most of them get the GIL again when the VI has been destroyed, and its descriptors taken by close()."""
    n_threads, found = 30, []
    for _ in range(5):
        vi, begun = nic.create_vi(), threading.Semaphore(0)
        for _ in range(n_threads):
            vi.post_recv(via.Descriptor.recv(owner=vi))

        def wait(vi=vi, begun=begun):
            begun.release()
            try:
                (vi.spin_recv if spin else vi.recv_wait)(LIMIT_S)
            except Exception as error:
                found.append(error)

        threads = [threading.Thread(target=wait) for _ in range(n_threads)]
        for thread in threads:
            thread.start()
            begun.acquire()
        vi.close()
        for thread in threads:
            thread.join(LIMIT_S)
    assert len(found) == 5 * n_threads
    flushed = [error for error in found if isinstance(error, errors.CompletionError)]
    assert all(error.status & via.Status.DESC_FLUSHED for error in flushed)
    assert [error for error in found if not isinstance(error, (errors.CompletionError, errors.ClosedError))] == []


# ---------------------------------------------------------------- the GIL


@pytest.mark.parametrize("spin", [False, True])
def test_others_run_while_one_waits(nic, pair, spin):
    a, b = pair
    a.post_recv(via.Descriptor.recv(owner=a))
    steps = []

    def work():
        for i in range(200):
            steps.append(sum(range(1000)) + i)
        b.send(b"", timeout_s=LIMIT_S)

    working = threading.Thread(target=work)
    working.start()
    (a.spin_recv if spin else a.recv_wait)(LIMIT_S)
    assert len(steps) == 200
    working.join(LIMIT_S)


def test_threads_that_post_and_take_at_the_same_time(nic, pair):
    a, b = pair
    n, n_threads = 300, 3  # fewer than a queue holds: nothing limits the senders
    failures = []

    def sender(thread):
        try:
            for i in range(n):
                a.post_send(via.Descriptor.send(owner=a, immediate=thread * n + i))
        except BaseException as error:
            failures.append(error)

    for _ in range(1000):
        b.post_recv(via.Descriptor.recv(owner=b))
    threads = [threading.Thread(target=sender, args=(i,)) for i in range(n_threads)]
    got = []
    for thread in threads:
        thread.start()
    deadline = time.monotonic() + LIMIT_S
    while len(got) < n * n_threads and not failures and time.monotonic() < deadline:
        descriptor = b.recv_wait(LIMIT_S)
        got.append(descriptor.immediate)
        b.post_recv(descriptor)
        a.send_done()
    for thread in threads:
        thread.join(LIMIT_S)
    assert not failures
    assert sorted(got) == list(range(n * n_threads))
    for thread in range(n_threads):
        mine = [value for value in got if value // n == thread]
        assert mine == sorted(mine)


# ---------------------------------------------------------------- asynchronous errors


def test_on_error_is_called_in_the_main_thread(nic, pair):
    a, b = pair
    told = []
    nic.on_error = lambda error: told.append((error, threading.current_thread()))
    b.disconnect()
    until(lambda: told, "on_error")
    error, thread = told[0]
    assert error.code is via.ErrorCode.CONN_LOST
    assert error.nic is nic
    assert error.vi is a
    assert error.text
    assert "CONN_LOST" in str(error)
    assert thread is threading.main_thread()
    assert error in nic.errors
    nic.errors.clear()
    assert not nic.errors


def test_on_error_is_called_during_a_wait_and_may_use_the_nic(nic, pair):
    _, b = pair
    told = []

    def handler(error):
        told.append(error.code)
        with nic.create_vi() as vi:
            assert vi.state is via.ViState.IDLE

    nic.on_error = handler
    with nic.create_cq(1) as cq:
        breaking = threading.Thread(target=b.disconnect)
        breaking.start()
        with pytest.raises(errors.ViaTimeoutError):
            cq.wait(0.3)
        breaking.join(LIMIT_S)
    until(lambda: told, "on_error")
    assert told == [via.ErrorCode.CONN_LOST]
    with pytest.raises(TypeError):
        nic.on_error = 3
    nic.on_error = None


def test_what_on_error_raises_is_reported_and_harms_nothing(nic, pair, monkeypatch):
    a, b = pair
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)

    def handler(error):
        raise ZeroDivisionError("in the handler")

    nic.on_error = handler
    b.disconnect()
    until(lambda: reported, "the report")
    assert reported[0].exc_type is ZeroDivisionError
    assert a.state is via.ViState.ERROR
    nic.on_error = None
