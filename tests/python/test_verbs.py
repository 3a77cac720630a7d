"""The link verbs where no RDMA card is needed: device names, errors at open, and the list of devices."""

from __future__ import annotations

import ctypes
from pathlib import Path

import pytest

from viakit import via
from viakit.errors import ViaError
from viakit.measure.endpoints import MeasureError
from viakit.measure.pair import Pair
from viakit.remote import Remote, RemoteError, rdma


def library_loads() -> bool:
    try:
        ctypes.CDLL("libibverbs.so.1")
    except OSError:
        return False
    return True


def add_port(folder: Path, device: str, port: int, state: str, owners: list[str]) -> None:
    """Write the files of a port as the kernel shows them. Unused entries of the GID table cannot be read."""
    where = folder / device / "ports" / str(port)
    (where / "gid_attrs/ndevs").mkdir(parents=True)
    (where / "state").write_text(f"{state}\n")
    for index, owner in enumerate(owners):
        entry = where / "gid_attrs/ndevs" / str(index)
        if owner:
            entry.write_text(f"{owner}\n")
        else:
            entry.mkdir()


def test_properties():
    link = via.link_of("verbs:mlx5_0")
    assert (link.name, link.leaves_host, link.lossless, link.maps_memory) == ("verbs", True, False, False)
    assert link.device("a", "eth0", "10.0.0.1") == "verbs:eth0"


@pytest.mark.parametrize("device", ["verbs:", "verbs:a:0", "verbs:a:17", "verbs:a:b", "verbs:a:"])
def test_a_device_that_is_no_name(device):
    with pytest.raises(ViaError, match="give verbs:DEVICE or verbs:INTERFACE, and :PORT"):
        via.Nic(device)


def missing() -> str:
    """Return a pattern for the error that names what is missing: the library, any device, or a device of that name."""
    if not library_loads():
        return "install it, on Debian and Ubuntu by apt-get install libibverbs1 ibverbs-providers"
    if rdma.ports():
        return f"it has {rdma.ports()[0].device}|although the kernel has .*ibverbs-providers"
    return "this host has no RDMA device"


def test_a_device_that_does_not_exist():
    with pytest.raises(ViaError, match=missing()):
        via.Nic("verbs:nothing")


@pytest.mark.parametrize("protocol", ["via-verbs", "via-verbs-write", "verbs", "verbs-write"])
def test_a_measurement_without_a_card(protocol):
    with pytest.raises(MeasureError, match=rf"^{protocol} needs an RDMA card on each side.*--network verbs:DEVICE"):
        Pair(protocol)
    with pytest.raises(MeasureError, match=f"^{protocol}: .*({missing()})"):
        Pair(protocol, options={"interface": "lo"})


def test_ports_of_devices(tmp_path):
    add_port(tmp_path, "mlx5_0", 1, "4: ACTIVE", ["", "enp3s0", "enp3s0"])
    add_port(tmp_path, "mlx5_0", 2, "1: DOWN", ["", ""])
    found = rdma.ports(tmp_path)
    assert found == [rdma.RdmaPort("mlx5_0", 1, "enp3s0", True), rdma.RdmaPort("mlx5_0", 2, "", False)]
    assert [rdma.interface_of(word, found) for word in ("mlx5_0", "enp3s0", "mlx5_0:2", "eth0")] == [
        "enp3s0", "enp3s0", "", None,
    ]  # fmt: skip
    assert rdma.ports(tmp_path / "missing") == []


def test_the_judgement_of_a_host_without_a_card():
    ok, value, detail, remedy = rdma.judge([])
    assert (ok, value, remedy) == (None, "none", "")
    assert "needs an RDMA card" in detail


def test_the_judgement_of_a_host_whose_card_cannot_be_used():
    ok, value, _, remedy = rdma.judge([rdma.RdmaPort("mlx5_0", 1, "enp3s0", False)])
    assert (ok, value) == (None, "mlx5_0 (enp3s0)")
    assert "apt-get install libibverbs1" in remedy or "ip link set enp3s0 up" in remedy


def test_a_network_between_hosts_that_is_no_device():
    with pytest.raises(RemoteError, match="expected eth:IF, verbs:DEVICE, udp:ADDRESS or udp:NETWORK/BITS"):
        Remote("ssh:.", network="verbs").open()
    with pytest.raises(RemoteError, match="has no RDMA device 'nothing' with an address; it has"):
        Remote("ssh:.", network="verbs:nothing").open()
