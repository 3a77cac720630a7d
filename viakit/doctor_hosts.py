"""Several machines and the way between them: the command ``viakit doctor --hosts ssh:A,B``.

The checks of :mod:`viakit.doctor` run on each host. Then each host tries the way to the next one: TCP, UDP in small,
full and jumbo frames that may not be fragmented, and raw frames.
"""

from __future__ import annotations

import concurrent.futures
import json
import secrets
import subprocess
from typing import TYPE_CHECKING, Any

from viakit.measure import children
from viakit.remote import Remote, RemoteError, RemoteHost
from viakit.remote.probe import JUMBO, PAYLOADS
from viakit.remote.spec import parse

if TYPE_CHECKING:
    from rich.console import Console

__all__ = ["examine", "render", "to_dict"]

_DOCTOR_S, _TRY_S = 90.0, 30.0
# Offloads without which a sender's processor cuts long messages into frames, and the names that ethtool has for them.
_ETHTOOL = {"tx-checksum": "tx", "sg": "sg", "tso": "tso", "gso": "gso"}
_MARKS = {True: "[green]yes[/green]", None: "[yellow]note[/yellow]", False: "[red]no[/red]"}


def examine(hosts: str, *, network: str | None = None, python: str | None = None) -> dict[str, Any]:
    """Examine machines that ssh reaches.

    Parameters
    ----------
    hosts : str
        ``ssh:A,B``; one name stands for this machine and that one.
    network, python : str, optional
        As for :class:`viakit.remote.Remote`.

    Returns
    -------
    dict
        Keys "schema", "network", "hosts" (a list of objects with "name", "address", "interface", "findings" as of
        :func:`viakit.doctor.to_dict`), and "ways" (a list of objects with "from", "to", "ok" (bool), "checks":
        a list of objects with "name", "ok", "value", "remedy").

    Raises
    ------
    viakit.remote.RemoteError
        If a host cannot be used; its text names the host and the next step.
    """
    if len(parse(hosts)) == 1:
        hosts = f"ssh:.,{hosts.removeprefix('ssh:')}"
    with Remote(hosts, network=network, python=python) as remote:
        with concurrent.futures.ThreadPoolExecutor(len(remote.hosts)) as pool:
            findings = list(pool.map(_findings, remote.hosts))
        about = remote.describe()
        for one, found in zip(about["hosts"], findings, strict=True):
            one["findings"] = found
        n = len(remote.hosts)
        pairs = [(i, j) for i in range(n) for j in ((i + 1) % n, (i - 1) % n)][: None if n > 2 else n * 2]
        ways = [_way(remote.hosts[i], remote.hosts[j]) for i, j in dict.fromkeys(pairs) if i != j]
    return {"schema": "viakit.doctor-hosts/1", **about, "ways": ways}


def _findings(host: RemoteHost) -> list[dict[str, Any]]:
    """Run the doctor on a host."""
    done = host.run([*children.command("viakit.cli", ["doctor", "--json"])], timeout=_DOCTOR_S)
    return list(_reply(host, done, "viakit doctor")["findings"])


def _reply(host: RemoteHost, done: subprocess.CompletedProcess[str], program: str) -> dict[str, Any]:
    """Return the JSON document that a program printed. Raises RemoteError with the end of its errors if it did not."""
    try:
        return dict(json.loads(done.stdout))
    except ValueError:
        why = done.stderr.strip().splitlines()[-1:] or ["it printed no result"]
        text = f"host {host.name}: {program} ended there with status {done.returncode}: {why[0]}"
        raise RemoteError(f"{text}; run it on that host") from None


def _way(near: RemoteHost, far: RemoteHost) -> dict[str, Any]:
    """Try the way from one host to another."""
    token = secrets.token_hex(8)
    server = far.popen(
        children.command("viakit.remote.probe", ["serve", far.address, token]),
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    with server:
        assert server.stdin is not None
        assert server.stdout is not None
        ports = json.loads(server.stdout.readline() or "{}")
        if not ports:
            checks = [
                _check("listening", False, f"{far.name} cannot listen on {far.address}", "name another --network")
            ]
        else:
            words = ["try", far.address, str(ports["tcp"]), str(ports["udp"]), near.interface, token]
            done = near.run(children.command("viakit.remote.probe", words), timeout=_TRY_S)
            checks = _judge(_reply(near, done, "the probe of the way"), near, far)
        server.stdin.close()
        server.wait(_TRY_S)
    return {
        "from": near.name,
        "to": far.name,
        "ok": all(one["ok"] is not False for one in checks),
        "checks": checks,
    }


def _check(name: str, ok: bool | None, value: str, remedy: str = "") -> dict[str, Any]:
    return {"name": name, "ok": ok, "value": value, "remedy": remedy if not ok else ""}


def _judge(found: dict[str, Any], near: RemoteHost, far: RemoteHost) -> list[dict[str, Any]]:
    """Return the checks of a way."""
    firewall = f"let the firewall of {far.name} pass {{}} from {near.address}"
    mtu = next((one["mtu"] for one in near.facts["interfaces"] if one["name"] == near.interface), None)
    checks = [_check("interface", True, f"{near.interface}, {near.address}, MTU {mtu}")]
    checks += _judge_card(found["card"])
    checks.append(_check("TCP", not found["tcp"], found["tcp"] or "connects", firewall.format("TCP")))
    small, whole, jumbo = (found["udp"][str(nbytes)] for nbytes in PAYLOADS)
    told = f"{small * 1e6:.0f} µs round trip, blocking" if isinstance(small, float) else str(small)
    checks.append(_check("UDP", isinstance(small, float), told, firewall.format("UDP")))
    if isinstance(small, float):
        text = "pass whole" if isinstance(whole, float) else str(whole)
        remedy = f"a device between the hosts has a smaller MTU: sudo ip link set {near.interface} mtu 1400 on both"
        checks.append(_check("frames of 1500 bytes", isinstance(whole, float), text, remedy))
        text = "pass whole" if isinstance(jumbo, float) else str(jumbo)
        remedy = f"if cards and switch can: sudo ip link set {near.interface} mtu {JUMBO} on both"
        checks.append(_check("jumbo frames", True if isinstance(jumbo, float) else None, text, remedy))
    remedy = "use via-udp, or have an administrator run the commands of `viakit config --raw` there"
    checks.append(_check("raw frames (via-eth)", None if found["raw"] else True, found["raw"] or "can be sent", remedy))
    return checks


def _judge_card(card: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the checks of the card at the near end of a way: driver, model and speed; and its offloads."""
    speed = f"{card['speed_mbit_s'] / 1000:g} Gbit/s" if "speed_mbit_s" in card else ""
    words = [card.get("driver", ""), card.get("model", ""), speed]
    checks = [_check("card", True, ", ".join(filter(None, words)) or "not reported by the kernel")]
    offloads: dict[str, bool] = card.get("offloads", {})
    off = [name for name in _ETHTOOL if offloads.get(name) is False]
    text = "; ".join(
        f"{word} {', '.join(names)}"
        for word, value in (("on", True), ("off", False))
        if (names := [name for name, state in offloads.items() if state is value])
    )
    remedy = f"if the card can: sudo ethtool -K {card['interface']} {' '.join(f'{_ETHTOOL[name]} on' for name in off)}"
    checks.append(_check("offloads", None if off else True, text or "not reported by the kernel", remedy))
    return checks


def to_dict(report: dict[str, Any]) -> dict[str, Any]:
    """Return the report for JSON, with the number of failures."""
    failures = sum(one["ok"] is False for host in report["hosts"] for one in host["findings"])
    failures += sum(one["ok"] is False for way in report["ways"] for one in way["checks"])
    return {**report, "failures": failures}


def render(report: dict[str, Any], console: Console) -> None:
    """Print the hosts side by side, the ways between them, and the remedies."""
    from rich.markup import escape  # start-up time, as the next one
    from rich.table import Table  # start-up time

    table = Table(title=f"Hosts: {report['network']}", title_justify="left")
    table.add_column("feature", no_wrap=True)
    for host in report["hosts"]:
        table.add_column(escape(host["name"]))
    names = dict.fromkeys(one["name"] for host in report["hosts"] for one in host["findings"])
    found = [{one["name"]: one for one in host["findings"]} for host in report["hosts"]]
    for name in names:
        cells = [f"{_MARKS[one[name]['ok']]} {escape(one[name]['value'])}" if name in one else "-" for one in found]
        table.add_row(escape(name), *cells)
    console.print(table)
    remedies = [
        (host["name"], one)
        for host in report["hosts"]
        for one in host["findings"]
        if one["remedy"] and one["ok"] is not True
    ]
    for way in report["ways"]:
        name = f"{way['from']} -> {way['to']}"
        console.print(
            f"{escape(name)}: "
            + "; ".join(f"{c['name']} {_MARKS[c['ok']]} {escape(c['value'])}" for c in way["checks"])
        )
        remedies += [(name, one) for one in way["checks"] if one["remedy"]]
    if remedies:
        console.print("Remedies:")
    for where, one in remedies:
        text = f"  {_MARKS[one['ok']]} [bold]{escape(where)}, {escape(one['name'])}[/bold]: {escape(one['remedy'])}"
        console.print(text, soft_wrap=True)
