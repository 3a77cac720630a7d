"""The conformance suite over both cards of two machines: the cases are those of test_conformance.py."""

from __future__ import annotations

import pytest
from test_conformance import (  # noqa: F401 - pytest collects the tests
    Pair,
    test_connecting,
    test_local_error,
    test_many_vis,
    test_message,
    test_messages,
    test_other_side_not_ready,
    test_rdma_read,
    test_rdma_read_refused,
    test_rdma_write,
    test_rdma_write_refused,
    test_rdma_write_while_the_target_computes,
    test_waiting,
)

from viakit.remote import Remote

pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module")
def remote(vm):
    with Remote("ssh:alpha,beta", timeout_s=100) as remote:
        yield remote


@pytest.fixture(scope="module", params=["eth:virtio", "eth:e1000", "udp:virtio", "udp:e1000", "verbs:virtio"])
def link(request, remote):
    """A function that runs one case on both machines."""
    if request.param.startswith("verbs"):
        request.getfixturevalue("rxe")
    pair = Pair(request.param, lambda role, command, fds: remote.hosts["ab".index(role)].popen(command, pass_fds=fds))
    yield lambda case, **parameters: pair.run(case, parameters)
    pair.close()
