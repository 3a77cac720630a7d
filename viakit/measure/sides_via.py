"""Sides of VIA and BIP on any link (:mod:`viakit.measure.sides`)."""

from __future__ import annotations

import contextlib
import socket
import time
from collections.abc import Iterator
from typing import Any

from viakit.measure.endpoints import VIA_CHOICES, MeasureError
from viakit.measure.sides import Side, interface_facts, pin

__all__ = ["BipSide", "PyViaSide", "ViaSide"]


class ViaSide(Side):
    """VIA on any link, in C."""

    link_prefix = "via-"

    @property
    def link(self) -> str:
        """Name of the link."""
        return self.protocol.removeprefix(self.link_prefix).removesuffix("-write")

    def device(self) -> str:
        """Return the NIC's name. shm and loop get a name of their own, so that concurrent pairs stay apart."""
        link = self.link
        about = self.core_module.link_of(link)
        return str(about.device(f"b{self.word}", self.request["interface"], self.request["address"]))

    def _choices(self) -> dict[str, int]:
        """Return the numbers in C of the options."""
        given = {name: str(self.options.get(name) or next(iter(known))) for name, known in VIA_CHOICES.items()}
        given["reliability"] = given["reliability"].removeprefix("reliable").lstrip("-_ ") or "delivery"
        for name, value in given.items():
            if value not in VIA_CHOICES[name]:
                raise MeasureError(f"{name} {value!r}: expected {', '.join(VIA_CHOICES[name])}", "usage")
        choices = {name: VIA_CHOICES[name][value] for name, value in given.items()}
        return choices | {name: int(self.options.get(name) or 0) for name in ("mtu", "spin_us")}

    @contextlib.contextmanager
    def _explained(self) -> Iterator[None]:
        """Add the next step to an error of the provider."""
        try:
            yield
        except MeasureError:
            raise
        except (OSError, RuntimeError, ValueError) as error:
            raise self._explain(error) from None

    def _explain(self, error: Exception) -> MeasureError:
        """Add the next step to an error of the provider."""
        text, link = str(error), self.link
        if self.core_module.link_of(link).named_by == "interface":
            known = {name for _, name in socket.if_nameindex()}
            interface = self.request["interface"]
            if interface not in known:
                here = ", ".join(sorted(known))
                return MeasureError(
                    f"{self.protocol}: interface {interface} does not exist on this host; it has {here}", "error"
                )
            if link == "eth" and ("ermission" in text or "ermitted" in text or "CAP_NET_RAW" in text):
                remedy = (
                    "via-udp, which needs no privilege" if self.request.get("hosts") == "ssh" else "--hosts testbed"
                )
                return MeasureError(f"{text}. Remedy: {remedy}", "refused")
        return MeasureError(f"{self.protocol}: {text}", getattr(error, "reason", "error"))

    def open(self) -> dict[str, Any]:
        """Open the NIC."""
        super().open()
        choices = self._choices()
        with self._explained():
            faults = self._faults()
            via = self.core_module.BenchEndpoint.via
            write = self.protocol.endswith("-write")
            self.endpoint = via(
                self.device(), self.polled, faults=faults, secret=self.secret, rdma_write=write, **choices
            )
            return {"address": self.endpoint.via_address().hex()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """A requests the discriminator that B accepts. It is random, so that concurrent runs stay apart."""
        with self._explained():
            while True:
                if self.side == 0:
                    done = self.endpoint.via_connect(bytes.fromhex(peer["address"]), self.token)
                else:
                    done = self.endpoint.via_accept(self.token)
                if done:
                    return
                if time.monotonic() > deadline:
                    raise MeasureError(
                        f"{self.protocol}: the peer did not answer the connection request. Remedy: see that both hosts "
                        "are on one wire and run the same version of viakit",
                        "timeout",
                    )
                if self.side == 0:
                    time.sleep(0.001)  # the peer does not wait yet, so the request was refused: limit the rate

    def describe(self) -> dict[str, Any]:
        """Return the properties of the NIC."""
        return self._facts(self.endpoint.via_describe())

    def _facts(self, said: dict[str, Any]) -> dict[str, Any]:
        whole = ("max_payload", "super_payload", "ring_slots", "nic_window", "bytes_registered", "bytes_pinned")
        facts: dict[str, Any] = {key: int(said[key]) for key in whole if key in said}
        facts |= {"device": str(said["device"]), "cma": {"1": True, "0": False}.get(str(int(said["cma"])))}
        choices = self._choices()
        names = {value: name for name, value in VIA_CHOICES["reliability"].items()}
        facts |= {"library": "viakit", "reliability": names[choices["reliability"]]}
        if not self.polled:
            facts["spin_us"] = choices["spin_us"]
        link = self.core_module.link_of(said["link"])
        facts["transport"] = link.transport
        if not link.leaves_host:
            return facts
        facts |= interface_facts(str(said["interface"])) | {"mtu": int(said["mtu"])}
        if said["form"]:
            facts |= {"form": str(said["form"]), "transport": f"{link.transport}, form {said['form']}"}
        else:
            super_frames = int(said["super_payload"]) > int(said["max_payload"])
            facts["transport"] += ", segmentation offload" if super_frames else ", a datagram per frame"
        return facts


class BipSide(ViaSide):
    """BIP on any link, in C. Options: those of VIA, and ``packet`` and ``small`` in place of calibrated bytes.

    Its levels are "unreliable" and "delivery", which stands for "reception", too.
    """

    link_prefix = "bip-"

    def _choices(self) -> dict[str, int]:
        known = VIA_CHOICES["reliability"]
        choices = super()._choices()
        level = "unreliable" if choices["reliability"] == known["unreliable"] else "delivery"
        return choices | {"reliability": known[level]}

    def open(self) -> dict[str, Any]:
        """Open the job."""
        Side.open(self)
        choices = self._choices()
        choices["unreliable"] = choices.pop("reliability") == VIA_CHOICES["reliability"]["unreliable"]
        choices |= {key: int(self.options.get(key) or 0) for key in ("packet", "small")}
        with self._explained():
            keyed: dict[str, Any] = {"faults": self._faults(), "secret": self.secret}
            bip = self.core_module.BenchEndpoint.bip
            self.endpoint = bip(self.device(), self.word, self.side, self.polled, **choices, **keyed)
            self.card: bytes = self.endpoint.bip_card()
            return {"address": self.card.hex()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Connect both sides to each other."""
        cards = [self.card, bytes.fromhex(peer["address"])]
        left = max(0.1, deadline - time.monotonic())
        with self._explained():
            if not self.endpoint.bip_connect(b"".join(cards if self.side == 0 else cards[::-1]), int(left * 1000)):
                raise MeasureError(f"{self.protocol}: the peer did not answer in time", "timeout")

    def describe(self) -> dict[str, Any]:
        """Return the properties of NIC and job."""
        said = self.endpoint.bip_describe()
        return self._facts(said) | {"small_bytes": int(said["small"])}


class PyViaSide(ViaSide):
    """VIA on any link, through viakit.via."""

    def open(self) -> dict[str, Any]:
        """Open the NIC."""
        pin(self.request.get("core"))
        from viakit import via  # start-up time

        self.via = via
        choices = self._choices()
        spin_us = None if self.polled else choices["spin_us"] or -1
        with self._explained():
            self.nic = via.Nic(
                self.device(),
                form=via.Form(choices["form"]),
                mtu=choices["mtu"] or None,
                spin_us=spin_us,
                retransmission=via.Retransmission(choices["retransmission"]),
                checksum=via.Checksum(choices["checksum"]),
            )
            self.nic.faults = self._faults() or None
        self.vi = self.nic.create_vi(reliability=choices["reliability"], secret=self.secret)
        return {"address": self.nic.address.host.hex()}

    def connect(self, peer: dict[str, Any], deadline: float) -> None:
        """Connect as in C."""
        left = max(0.1, deadline - time.monotonic())
        if self.side == 0:
            self.vi.connect(self.via.Address(bytes.fromhex(peer["address"]), self.token), timeout_s=left, retry=True)
        else:
            self._accept(deadline)
        self.endpoint = self.python_endpoint("ViaTransport", self.via, self.nic, self.vi, self.polled)

    def _accept(self, deadline: float) -> None:
        """Accept the other side's request. Reject those of processes that do not have the pair's secret."""
        while True:
            request = self.nic.connect_wait(self.token, timeout_s=max(0.1, deadline - time.monotonic()))
            try:
                request.accept(self.vi)
                return
            except ConnectionRefusedError:
                request.reject()

    def describe(self) -> dict[str, Any]:
        """Return the properties of the NIC."""
        info = self.nic.info
        said = {key: getattr(info, key) for key in ("max_payload", "super_payload", "ring_slots", "bytes_registered")}
        said |= {key: getattr(info, key) for key in ("bytes_pinned", "device", "link", "mtu", "form", "interface")}
        return self._facts(said | {"nic_window": info.window, "cma": -1 if info.cma is None else int(info.cma)})

    def close(self) -> None:
        """Close endpoint, VI and NIC."""
        super().close()
        self.vi.disconnect()
        self.vi.drain()
        self.vi.close()
        self.nic.close()


ViaSide.in_python = PyViaSide
