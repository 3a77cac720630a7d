"""Signal handlers that raise or close objects, in the middle of waiting calls with completed descriptors."""

from __future__ import annotations

import contextlib
import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading

import pytest
from via_pair import connected
from waiting import LIMIT_S, until

from viakit import errors, via


class Interrupt(Exception):
    """Raised by the signal handlers here."""


@pytest.fixture
def alarmed():
    """``with alarmed(handler):`` SIGALRM comes in 20 ms, that is, in the middle of the wait, and runs `handler`.

    A busy machine may keep this process waiting for as long, even before the ``with`` has begun. A test whose handler
    needs the wait gives its sign, `begun`: SIGALRM comes when that returns true. ``pytest.raises`` has to be outside.
    """

    @contextlib.contextmanager
    def alarmed(handler, begun=None):
        def watch():
            until(begun, "the wait")
            os.kill(os.getpid(), signal.SIGALRM)

        before = signal.signal(signal.SIGALRM, lambda number, frame: handler())
        watching = threading.Thread(target=watch)
        try:
            watching.start() if begun else signal.setitimer(signal.ITIMER_REAL, 0.02)
            yield
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            if begun:
                watching.join()
            signal.signal(signal.SIGALRM, before)

    return alarmed


def nothing_is_left():
    gc.collect()
    return not any(via.live_objects().values())


# ---------------------------------------------------------------- exceptions that come together with completions


def completes_and_raises(b, a, posted):
    """A handler that makes complete what the interrupted call waits for, and then raises."""

    def handler():
        b.send(b"later", immediate=5, timeout_s=LIMIT_S)
        until(lambda: a.nic.poll() < 0 or posted.done, "the message")
        raise Interrupt

    return handler


@pytest.mark.parametrize("how", ["recv_wait", "spin_recv"])
@pytest.mark.parametrize("no_thread", [False, True])
def test_a_receive_that_completes_while_a_handler_raises_is_not_lost(alarmed, how, no_thread):
    with via.Nic("loop:signals") as nic, via.Nic("loop:signals", no_thread=no_thread) as other:
        b, a = connected(nic, other)
        posted = via.Descriptor.recv(other.create_region(8))
        a.post_recv(posted)
        with pytest.raises(Interrupt), alarmed(completes_and_raises(b, a, posted)):
            getattr(a, how)(LIMIT_S)
        assert a.recv_wait(LIMIT_S) is posted
        assert posted.immediate == 5


def test_an_announcement_that_comes_while_a_handler_raises_is_not_lost(alarmed):
    with via.Nic("loop:signals") as nic:
        cq = nic.create_cq(8)
        a, b = connected(nic, recv_cq=cq)
        posted = via.Descriptor.recv(nic.create_region(8))
        a.post_recv(posted)
        with pytest.raises(Interrupt), alarmed(completes_and_raises(b, a, posted)):
            cq.wait(LIMIT_S)
        assert cq.wait(LIMIT_S).descriptor is posted


def test_a_request_that_comes_while_a_handler_raises_is_refused(alarmed):
    with via.Nic("loop:signals") as nic:
        told = []

        def query():
            with nic.create_vi() as vi:
                try:
                    vi.connect(nic.address / "busy", LIMIT_S)
                except errors.ViaError as error:
                    told.append(error)

        def handler():
            querying.start()
            until(lambda: any(c["state"] == "being answered" for c in nic.snapshot()["connections"]), "the request")
            raise Interrupt

        querying = threading.Thread(target=query)
        waits = lambda: any(c["state"] == "waiting" for c in nic.snapshot()["connections"])  # noqa: E731
        with pytest.raises(Interrupt), alarmed(handler, waits):
            nic.connect_wait("busy", LIMIT_S)
        querying.join(LIMIT_S)
        assert isinstance(told[0], errors.RejectedError)


@pytest.mark.parametrize("peers", [False, True])
def test_a_connection_that_is_made_while_a_handler_raises_ends(alarmed, peers):
    with via.Nic("loop:signals") as nic:
        vi, other = nic.create_vi(), nic.create_vi()

        def answer():
            if peers:
                other.connect_peer(nic.address / "here", "there", LIMIT_S)
            else:
                nic.connect_wait("there", LIMIT_S).accept(other)

        def handler():
            answer()
            raise Interrupt

        threads = []
        if not peers:  # a VI must wait there, or the request ends at once
            waiting = threading.Thread(target=lambda: threads.append(nic.connect_wait("there", LIMIT_S)))
            waiting.start()

            def answer():
                until(lambda: threads, "the request")
                threads[0].accept(other)

        connect = vi.connect_peer if peers else vi.connect
        arguments = {"local": "here"} if peers else {"retry": True}
        # The program's request has come to the other VI, or waits for its peer.
        begun = (lambda: nic.snapshot()["connections"]) if peers else (lambda: threads)
        with pytest.raises(Interrupt), alarmed(handler, begun):
            connect(nic.address / "there", timeout_s=LIMIT_S, **arguments)
        assert vi.state is via.ViState.IDLE


def test_a_handler_may_wait_and_the_wait_that_it_interrupts_can_be_interrupted_again(alarmed):
    with via.Nic("loop:signals") as nic:
        a, _ = connected(nic)
        a.post_recv(via.Descriptor.recv(owner=a))
        n = 0

        def handler():
            nonlocal n
            n += 1
            if n == 2:
                raise Interrupt
            with nic.create_cq(1) as cq, pytest.raises(errors.ViaTimeoutError):
                cq.wait(0.001)  # it takes the check for signals away when it ends
            signal.setitimer(signal.ITIMER_REAL, 0.02)

        with pytest.raises(Interrupt), alarmed(handler):
            a.recv_wait(LIMIT_S)
        assert n == 2


# ---------------------------------------------------------------- closing the NIC in a handler


def test_a_notification_may_close_its_nic():
    nic = via.Nic("loop:signals")
    a, b = connected(nic)
    a.post_recv(via.Descriptor.recv(owner=a))
    closed = threading.Event()

    def handler(completion):
        nic.close()
        assert nic.closed
        closed.set()

    a.recv_notify(handler)
    b.send(b"", timeout_s=LIMIT_S)
    assert closed.wait(LIMIT_S)
    del a, b
    until(nothing_is_left, "the NIC to go")


def test_a_notification_may_close_a_nic_that_only_calls_drive():
    nic = via.Nic("loop:signals", no_thread=True)
    vi = nic.create_vi()
    vi.send_notify(lambda completion: nic.close())
    vi.post_send(via.Descriptor.send(owner=vi))
    nic.poll()
    assert nic.closed
    until(nothing_is_left, "the NIC to go")


@pytest.mark.parametrize("what", ["nic", "vi"])
def test_a_signal_handler_may_close_what_the_program_waits_for(alarmed, what):
    with via.Nic("loop:other") as other:
        vi, _ = connected(other)
        vi.post_recv(via.Descriptor.recv(owner=vi))
        with pytest.raises(errors.ClosedError), alarmed(other.close if what == "nic" else vi.close):
            vi.recv_wait(LIMIT_S)
    until(lambda: via.live_objects()["nics"] == 0, "the NIC to go")


def test_the_handler_of_an_error_may_close_its_nic():
    nic = via.Nic("loop:signals")
    a, b = connected(nic)
    nic.on_error = lambda error: nic.close()
    a.post_recv(via.Descriptor.recv(owner=a))
    breaking = threading.Thread(target=b.disconnect)
    breaking.start()
    with contextlib.suppress(errors.ViaError):
        a.recv_wait(LIMIT_S)
    breaking.join(LIMIT_S)
    until(lambda: nic.closed, "on_error")
    until(nothing_is_left, "the NIC to go")


# ---------------------------------------------------------------- what handlers raise


def test_a_handler_of_errors_that_raises_does_not_keep_a_nic_open(monkeypatch):
    reported = []
    monkeypatch.setattr(sys, "unraisablehook", lambda report: reported.append(report.exc_value))
    told = []

    def handler(error):
        told.append(error.code)
        raise ZeroDivisionError(len(told))

    def work():
        with via.Nic("loop:signals") as nic:
            nic.on_error = handler
            pairs = [connected(nic) for _ in range(3)]
            for a, _ in pairs:
                a.disconnect()
            until(lambda: nic.counters["async_errors"] == 3, "the errors")
        closed.append(nic.closed)

    # Not in the main thread, which would report the errors one by one.
    closed = []
    working = threading.Thread(target=work)
    working.start()
    working.join()
    assert closed == [True]
    assert told == 3 * [via.ErrorCode.CONN_LOST]
    assert [str(error) for error in reported] == ["1", "2", "3"]
    reported.clear()


def test_what_a_handler_raises_is_shown():
    """By the interpreter's own hook, which wants its own kind of report."""
    program = """
        import time
        from viakit import via

        with via.Nic("loop:shown") as nic:
            vi, done = nic.create_vi(), []

            def handler(completion):
                done.append(completion)
                raise ZeroDivisionError("to be shown")

            vi.send_notify(handler)
            vi.post_send(via.Descriptor.send(owner=vi))
            while not done:
                time.sleep(0.001)
        """
    child = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)], capture_output=True, text=True, timeout=LIMIT_S
    )
    assert child.stderr.splitlines()[-1] == "ZeroDivisionError: to be shown"
    assert child.stderr.startswith("Exception ignored in: <function handler at")


@pytest.mark.parametrize("kind", [KeyboardInterrupt, SystemExit])
@pytest.mark.parametrize("of", ["on_error", "notification"])
def test_an_interrupt_within_a_handler_reaches_the_program(kind, of):
    """It was meant for the program, and came while a handler ran in the middle of its wait."""

    def handler(_):
        raise kind

    with via.Nic("loop:signals", no_thread=of == "notification") as nic, via.Nic("loop:signals") as other:
        b, a = connected(other, nic)
        for _ in range(2):
            a.post_recv(via.Descriptor.recv(owner=a))
        waiting = nic.create_vi()
        waiting.post_recv(via.Descriptor.recv(owner=waiting))
        if of == "on_error":
            nic.on_error = handler
            act = b.disconnect
        else:
            a.recv_notify(handler)
            act = lambda: b.send(b"", timeout_s=LIMIT_S)  # noqa: E731
        acting = threading.Thread(target=act)

        def wait():
            acting.start()
            with nic.create_cq(1) as cq:
                cq.wait(LIMIT_S)

        with pytest.raises(kind):  # out of the wait, or out of what comes before it
            wait()
        acting.join(LIMIT_S)
        nic.on_error = None


# ---------------------------------------------------------------- children


def test_a_child_does_not_hear_of_its_parents_errors(tmp_path):
    program = """
        import os, sys, threading, time
        from viakit import via

        def connected(nic):
            a, b = nic.create_vi(), nic.create_vi()
            querying = threading.Thread(target=lambda: b.connect(nic.address / "pair", 20, retry=True))
            querying.start()
            nic.connect_wait("pair", 20).accept(a)
            querying.join(20)
            return a, b

        def work():
            before = nic.counters["async_errors"]
            b.disconnect()
            while nic.counters["async_errors"] == before:
                time.sleep(0.001)
            pid = os.fork()
            if pid:
                os.waitpid(pid, 0)
                return
            with via.Nic("loop:child") as own:
                own.on_error = lambda error: None
                c, d = connected(own)
                d.disconnect()
                while not own.errors:
                    time.sleep(0.001)
            print("child", [pid for pid in told if pid == os.getpid()], flush=True)
            os._exit(0)

        told = []
        nic = via.Nic("loop:parent")
        nic.on_error = lambda error: told.append(os.getpid())
        a, b = connected(nic)
        # Not in the main thread, which would tell the error before the fork.
        working = threading.Thread(target=work)
        working.start()
        working.join()
        nic.close()
        """
    child = subprocess.run(
        [sys.executable, "-W", "ignore", "-c", textwrap.dedent(program)],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
    )
    assert child.stdout == "child []\n", child.stderr
