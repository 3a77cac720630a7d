"""Later calls of VIPL from Python: peers, notifications, attributes, names, events."""

from __future__ import annotations

import gc
import os
import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from waiting import LIMIT_S, until

from viakit import errors, via
from viakit.testbed import NamespaceError, Testbed


@contextmanager
def pair(device: str, **vi_options: object) -> Iterator[tuple[via.Nic, via.Vi, via.Vi, via.MemoryRegion]]:
    """Two VIs of one NIC, connected as peers, and memory."""
    with (
        via.Nic(device) as nic,
        nic.create_region(4096) as memory,
        nic.create_vi() as a,
        nic.create_vi(**vi_options) as b,
    ):
        a.request_peer(nic.address / "b", "a", timeout_s=LIMIT_S)
        b.connect_peer(nic.address / "a", "b", timeout_s=LIMIT_S)
        until(lambda: a.peer_done() is not None)
        yield nic, a, b, memory


# ---------------------------------------------------------------- peers


def test_peers_find_each_other_whoever_begins() -> None:
    with pair("loop:peers") as (nic, a, b, memory):
        assert a.state is b.state is via.ViState.CONNECTED
        b.post_recv(via.Descriptor.recv(memory[:64]))
        a.send(b"hello", timeout_s=LIMIT_S)
        assert bytes(memory[: b.recv_wait(LIMIT_S).length]) == b"hello"
        with pytest.raises(errors.InvalidStateError, match="no peer request"):
            a.peer_done()
        with pytest.raises(errors.InvalidStateError, match="must be idle"):
            a.connect_peer(nic.address / "b", "a")


def test_two_threads_connect_as_peers_of_two_nics() -> None:
    found: list[via.ViAttributes] = []

    def one(own: str, other: str) -> None:
        with via.Nic("loop:two") as nic, nic.create_vi(max_transfer_size=65536) as vi:
            found.append(vi.connect_peer(nic.address / other, own, timeout_s=LIMIT_S))
            barrier.wait(LIMIT_S)

    barrier = threading.Barrier(2)
    threads = [threading.Thread(target=one, args=names) for names in (("x", "y"), ("y", "x"))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT_S)
    assert [attributes.max_transfer_size for attributes in found] == [65536, 65536]


def test_peers_that_do_not_fit_and_peers_that_do_not_come() -> None:
    with via.Nic("loop:misfits") as nic, nic.create_vi(via.Reliability.UNRELIABLE) as a, nic.create_vi() as b:
        a.request_peer(nic.address / "b", "a")
        with pytest.raises(errors.ReliabilityLevelError):
            b.connect_peer(nic.address / "a", "b", timeout_s=LIMIT_S)
        until(lambda: a.state is via.ViState.IDLE)
        with pytest.raises(errors.ReliabilityLevelError):
            a.peer_done()
        with pytest.raises(errors.ViaTimeoutError, match="no peer requested"):
            b.connect_peer(nic.address / "nobody", "b", timeout_s=0.02)
        b.request_peer(nic.address / "nobody", "b", timeout_s=None)
        assert b.peer_done() is None
        b.disconnect()
        assert b.state is via.ViState.IDLE
        with pytest.raises(TypeError, match="remote must be an Address"):
            b.connect_peer("nobody")
        with pytest.raises(errors.InvalidParameterError, match="timeout 0"):
            b.request_peer(nic.address / "nobody", timeout_s=0)


# ---------------------------------------------------------------- notifications


def test_notified_of_every_message_from_another_thread() -> None:
    with pair("loop:notify") as (_, a, b, memory):
        seen: list[tuple[int, bytes]] = []

        def arrived(completion: via.Completion) -> None:
            assert completion.vi is b
            assert completion.queue is via.Queue.RECV
            assert completion.error is None
            seen.append((threading.get_ident(), bytes(completion.descriptor.raw[:0]) + bytes(memory[:4])))
            if len(seen) < 5:
                b.post_recv(completion.descriptor)
                b.recv_notify(arrived)  # from within

        b.recv_notify(arrived)
        b.post_recv(via.Descriptor.recv(memory[:4]))
        for i in range(5):
            a.send(b"no %d" % i, timeout_s=LIMIT_S)
            until(lambda i=i: len(seen) == i + 1)
        assert [text for _, text in seen] == [b"no %d" % i for i in range(5)]
        assert threading.get_ident() not in {thread for thread, _ in seen}
        assert b.n_recvs_posted == 0


def test_notified_of_sends_and_of_an_entry_that_is_there_already() -> None:
    with (
        via.Nic("loop:notify-cq") as nic,
        nic.create_region(4096) as memory,
        nic.create_cq(16) as cq,
        nic.create_vi() as a,
        nic.create_vi(recv_cq=cq) as b,
    ):
        a.request_peer(nic.address / "b", "a")
        b.connect_peer(nic.address / "a", "b", timeout_s=LIMIT_S)
        until(lambda: a.peer_done() is not None)
        with pytest.raises(errors.InvalidStateError, match="VipCQNotify"):
            b.recv_notify(print)
        receive, send = via.Descriptor.recv(memory[:64]), via.Descriptor.send(memory[64:72])
        b.post_recv(receive)
        sent: list[via.Completion] = []
        received: list[via.Completion] = []
        a.send_notify(sent.append)
        a.post_send(send)
        until(lambda: sent)
        assert sent[0].descriptor is send
        assert not send.posted
        cq.notify(received.append)
        until(lambda: received)
        assert received[0] == (b, via.Queue.RECV, receive)
        with pytest.raises(TypeError, match="takes a Completion"):
            cq.notify(None)


def test_what_a_handler_raises_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    reported: list[object] = []
    monkeypatch.setattr(sys, "unraisablehook", reported.append)
    with pair("loop:raises") as (_, a, b, memory):

        def bad(_: via.Completion) -> None:
            raise LookupError("on purpose")

        b.recv_notify(bad)
        b.post_recv(via.Descriptor.recv(memory[:64]))
        a.send(b"x", timeout_s=LIMIT_S)
        until(lambda: reported)
        assert isinstance(reported[0].exc_value, LookupError)
        assert reported[0].object is bad
        assert b.n_recvs_posted == 0  # the descriptor was taken all the same
    assert len(reported) == 1


def test_a_flushed_descriptor_is_told_with_its_error_and_closing_cancels() -> None:
    with via.Nic("loop:cancel") as nic, nic.create_region(4096) as memory:
        told: list[via.Completion] = []
        with nic.create_vi() as vi:
            vi.recv_notify(told.append)
            vi.post_recv(via.Descriptor.recv(memory[:64]))
            vi.disconnect()
            until(lambda: told)
            assert told[0].error is not None
            assert via.Status.DESC_FLUSHED in told[0].error.status
            vi.send_notify(told.append)
        with nic.create_cq(4) as cq:
            cq.notify(told.append)
        circle = nic.create_vi()
        circle.recv_notify(lambda _, vi=circle: vi)  # which is collected
        circle.close()
        del circle
        gc.collect()
        assert len(told) == 1


def test_without_a_thread_whoever_polls_runs_the_handler() -> None:
    with via.Nic("loop:no-thread", no_thread=True) as nic, nic.create_region(64) as memory, nic.create_vi() as vi:
        told: list[int] = []
        vi.recv_notify(lambda _: told.append(threading.get_ident()))
        vi.post_recv(via.Descriptor.recv(memory[:64]))
        vi.disconnect()
        assert told == []
        nic.poll()
        assert told == [threading.get_ident()]


# ---------------------------------------------------------------- attributes, sizes, data, events


def test_attributes_of_an_idle_vi_can_be_changed() -> None:
    with via.Nic("loop:attributes") as nic, nic.create_tag() as tag, nic.create_vi() as vi:
        vi.set_attributes(via.Reliability.UNRELIABLE, max_transfer_size=1000, tag=tag, rdma_write=True)
        assert vi.attributes == via.ViAttributes(via.Reliability.UNRELIABLE, 1000, True, False)
        assert vi.tag is tag
        with pytest.raises(errors.ResourceError):
            tag.close()
        vi.set_attributes(tag=nic.tag)
        assert vi.attributes.max_transfer_size == 1000  # None leaves it
        tag.close()
        with pytest.raises(errors.ReliabilityLevelError):
            vi.set_attributes(3)
        vi.request_peer(nic.address / "nobody", "x")
        with pytest.raises(errors.InvalidStateError):
            vi.set_attributes(rdma_write=False)


def test_user_data_is_kept_as_long_as_the_vi() -> None:
    class Thing:
        pass

    with via.Nic("loop:data") as nic, nic.create_vi() as vi:
        assert vi.user_data is None
        vi.user_data = thing = Thing()
        assert vi.user_data is thing
    with pytest.raises(errors.ClosedError):
        vi.user_data = 1


def test_a_completion_queue_is_resized_and_keeps_its_entries() -> None:
    with (
        via.Nic("loop:resize") as nic,
        nic.create_region(64) as memory,
        nic.create_cq(4) as cq,
        nic.create_vi(send_cq=cq) as vi,
    ):
        sends = [via.Descriptor.send(memory[:8]) for _ in range(4)]
        for send in sends:
            vi.post_send(send)  # flushed: the VI is idle
        with pytest.raises(errors.ResourceError, match="4 completions wait"):
            cq.resize(3)
        cq.resize(100)
        assert cq.n_entries == 100
        assert [completion.descriptor for completion in cq] == sends


def test_an_eventfd_wakes_whoever_selects() -> None:
    fd = os.eventfd(0) if hasattr(os, "eventfd") else -1
    if fd < 0:
        pytest.skip("os.eventfd is new in Python 3.10")
    with via.Nic("loop:event") as nic, nic.create_region(64) as memory, nic.create_cq(16) as cq:
        cq.add_event(fd, tag=5)
        with nic.create_vi(recv_cq=cq) as vi:
            assert select.select([fd], [], [], 0)[0] == []
            vi.post_recv(via.Descriptor.recv(memory[:8]))
            vi.disconnect()
            assert select.select([fd], [], [], LIMIT_S)[0] == [fd]
            assert os.eventfd_read(fd) == 1
            assert cq.done() is not None
        cq.remove_event(fd, tag=5)
        with pytest.raises(errors.InvalidParameterError):
            cq.remove_event(fd, tag=5)
        with pytest.raises(errors.InvalidParameterError, match="eventfd"):
            cq.add_event(0)
    os.close(fd)


def test_sends_wait_until_they_are_let_go() -> None:
    with pair("loop:defer") as (_, a, b, memory):
        receives = [via.Descriptor.recv(memory[64 * i : 64 * i + 64]) for i in range(3)]
        sends = [via.Descriptor.send(memory[:8]) for _ in range(3)]
        for receive in receives:
            b.post_recv(receive)
        a.deferring = True
        for send in sends:
            a.post_send(send)
        assert a.send_done() is None
        assert b.recv_done() is None
        assert a.deferring
        a.deferring = False
        assert [b.recv_wait(LIMIT_S) for _ in receives] == receives
        assert [a.send_wait(LIMIT_S) for _ in sends] == sends


# ---------------------------------------------------------------- names


def test_devices_and_hosts_by_names_of_a_file(monkeypatch: pytest.MonkeyPatch, tmp_path) -> None:
    config = tmp_path / "viakit.conf"
    config.write_text("device card = loop:named\nhost anna = 02:00:00:00:00:0a\n")
    monkeypatch.setenv("VIAKIT_CONFIG", str(config))
    with via.Nic("card") as nic:
        assert (nic.device, nic.attributes.name, nic.info.device) == ("card", "card", "loop:named")
        assert nic.resolve("anna", "x") == via.Address(bytes.fromhex("02000000000a"), b"x")
        assert nic.name_of(nic.resolve("anna")) == "anna"
        assert nic.discover() == [nic.address]
        config.write_text(f"host here = {nic.address.host.hex(':')}\n")
        assert nic.names == {"here": nic.address}
    with pytest.raises(errors.InvalidParameterError, match="no device 'card'"):
        via.Nic("card")
    monkeypatch.setenv("VIAKIT_DEVICES", "card=loop:other")
    with via.Nic("card") as nic:
        assert nic.info.device == "loop:other"


@pytest.fixture
def testbed_pair() -> Iterator[Testbed]:
    try:
        bed = Testbed(hosts=2).open()
    except NamespaceError as error:
        pytest.skip(f"no hosts here: {error}")
    yield bed
    bed.close()


def _ask_for_names(device: str) -> tuple[list[str], str, dict[str, bytes], int]:
    """On a host: the addresses of h0 and h1, the name of h1's, and who answers."""
    with via.Nic(device) as nic:
        found = [nic.resolve(name) for name in ("h0", "h1")]
        return (
            [str(address) for address in found],
            nic.name_of(found[1]),
            {name: address.host for name, address in nic.names.items()},
            len(nic.discover()),
        )


def test_hosts_of_a_testbed_know_each_other_by_name(testbed_pair: Testbed) -> None:
    a, b = testbed_pair.hosts
    macs = [bytes.fromhex(host.mac.replace(":", "")) for host in (a, b)]
    found, name, names, n = a.call(_ask_for_names, f"eth:{a.interface}")
    assert found == [str(via.Address(mac)) for mac in macs]
    assert (name, names, n) == ("h1", {"h0": macs[0], "h1": macs[1]}, 2)
    found, name, names, n = b.call(_ask_for_names, "udp:" + b.address)
    assert name == "h1"
    assert {"h1"} <= set(names)
    assert n >= 1
    # A program's own setting has the last word, and one that runs on one machine is not sent to the wire.
    assert "elsewhere" in a.run(["sh", "-c", "echo $VIAKIT_HOSTS"], env={"VIAKIT_HOSTS": "elsewhere"}).stdout
