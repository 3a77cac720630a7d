"""The hot paths of the Python face, timed by pytest-benchmark; only in `make bench`, and nothing asserts a time."""

from __future__ import annotations

import threading

import numpy as np
import pytest

from viakit import via

LIMIT_S = 20.0


@pytest.fixture
def pair():
    """Two connected VIs on one loop NIC that only calls drive: what is timed is Python and the provider, not a peer."""
    with via.Nic("loop:benchmark", no_thread=True) as nic:
        a, b = nic.create_vi(), nic.create_vi()
        asking = threading.Thread(target=lambda: a.connect(nic.address / "pair", LIMIT_S, retry=True))
        asking.start()
        nic.connect_wait("pair", LIMIT_S).accept(b)
        asking.join(LIMIT_S)
        yield nic, a, b


def test_poll_an_unfinished_receive(benchmark, pair):
    _, _, b = pair
    b.post_recv(via.Descriptor.recv(owner=b))
    benchmark(b.recv_done)


def test_message_on_prepared_descriptors(benchmark, pair):
    nic, a, b = pair
    with nic.create_region(128) as region:
        send, recv = via.Descriptor.send(region[:64]), via.Descriptor.recv(region[64:])

        def message():
            b.post_recv(recv)
            a.post_send(send)
            while b.recv_done() is None:
                pass
            while a.send_done() is None:
                pass

        benchmark(message)


def test_message_of_4_mib(benchmark, pair):
    nic, a, b = pair
    with nic.create_region(8 << 20) as region:
        send, recv = via.Descriptor.send(region[: 4 << 20]), via.Descriptor.recv(region[4 << 20 :])

        def message():
            b.post_recv(recv)
            a.post_send(send)
            b.spin_recv(LIMIT_S)
            a.spin_send(LIMIT_S)

        benchmark(message)


def test_prepare_a_descriptor(benchmark, pair):
    nic, _, _ = pair
    with nic.create_region(64) as region:
        piece = region[:]
        benchmark(via.Descriptor.send, piece)


def test_register_and_deregister_4_kib(benchmark, pair):
    nic, _, _ = pair
    array = np.zeros(4096, np.uint8)
    benchmark(lambda: nic.register(array).close())


def test_counters(benchmark, pair):
    nic, _, _ = pair
    benchmark(lambda: nic.counters)
