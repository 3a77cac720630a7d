"""RDMA by the card between two machines, over RDMA in software: the cases are those of via_cases_card.py."""

from __future__ import annotations

import pytest
from test_conformance import Pair
from vm_machine import guest

from viakit.remote import Remote

pytestmark = pytest.mark.timeout(300)
levels = pytest.mark.parametrize("level", ["reliable_delivery", "reliable_reception"])


@pytest.fixture(scope="module")
def link(rxe):
    """A function that runs one case on both machines."""
    with Remote("ssh:alpha,beta", timeout_s=100) as remote:
        pair = Pair("verbs:virtio", lambda role, words, fds: remote.hosts["ab".index(role)].popen(words, pass_fds=fds))
        yield lambda case, **parameters: pair.run(case, parameters)
        pair.close()


@pytest.mark.parametrize("nbytes", [1100, 4096, 65541, 1000003])
@levels
def test_write_to_a_target_that_makes_no_call(link, level, nbytes):
    link("card_write", level=level, nbytes=nbytes)


@pytest.mark.parametrize("nbytes", [3, 4096, 65541, 1000003])
@levels
def test_read_from_a_target_that_makes_no_call(link, level, nbytes):
    link("card_read", level=level, nbytes=nbytes)


@pytest.mark.parametrize("case", ["card_immediate", "card_order"])
@levels
def test_order(link, case, level):
    link(case, level=level)


@pytest.mark.parametrize(
    "case", ["card_pieces", "card_row", "card_rights_changed", "card_source_deregistered", "card_disconnect"]
)
def test_rdma(link, case):
    link(case)


@pytest.mark.parametrize("fault", ["outside", "across", "before", "region", "vi", "tag", "stale"])
@levels
def test_a_write_that_is_refused(link, level, fault):
    """The codes, and the side that gets each, are those of other links."""
    link("rdma_write_refused", level=level, fault=fault, length=3000)


def test_a_key_that_is_no_longer_valid(link):
    link("card_deregistered")


def test_the_target_is_killed(link):
    link("peer_killed", write=True)


def test_the_card_gives_up(link):
    link("card_outage", interface="virtio")


def test_a_lossy_wire(rxe, link):
    for machine in rxe:
        guest(machine, "tc qdisc add dev virtio root netem delay 1ms 1ms loss 2%")
    try:
        # rdma_rxe gives up often if packets overtake each other. Frames then repeat the writes.
        link("card_order", level="reliable_delivery", least=1)
        link("rdma_read", level="reliable_delivery", nbytes=100000)
    finally:
        for machine in rxe:
            guest(machine, "tc qdisc del dev virtio root")
