"""Counters of system calls agree with the kernel's: strace watches a polled exchange over raw Ethernet."""

from __future__ import annotations

import json
import re
import subprocess
import sys

import needs

TURNS = 500  # each takes milliseconds where other programs have the cores
PLAYER = """
import json, sys
from viakit import via

serves, peer, turns = sys.argv[1] == "serves", sys.argv[2], int(sys.argv[3])
with via.Nic("eth:eth0") as nic, nic.create_vi() as vi, nic.create_region(192) as memory:
    throw = via.Descriptor.send(memory[:64])
    for i in (1, 2):
        vi.post_recv(via.Descriptor.recv(memory[64 * i : 64 * (i + 1)]))
    if serves:
        vi.connect(nic.resolve(peer, "strace"), timeout_s=60, retry=True)
    else:
        nic.connect_wait("strace", timeout_s=60).accept(vi)
    before = dict(nic.counters)
    for turn in range(2 * turns):
        if (turn % 2 == 0) == serves:
            vi.post_send(throw)
        else:
            vi.post_recv(vi.spin_recv(timeout_s=60))
            if turn > 0:
                vi.spin_send(timeout_s=60)  # the answer acknowledged it
    after = dict(nic.counters)
    print(json.dumps({name: after[name] - before[name] for name in after} | {"connecting": before["frames_sent"]}))
"""


def test_one_call_to_send_and_none_to_receive(tmp_path):
    needs.tool("strace")
    trace = tmp_path / "trace"
    with needs.hosts() as bed:
        player = [sys.executable, "-c", PLAYER]
        waits = bed.hosts[1].popen([*player, "waits", "-", str(TURNS)], stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        watched = ["strace", "-f", "-y", "-e", "trace=network", "-o", str(trace)]
        served = bed.hosts[0].run([*watched, *player, "serves", bed.hosts[1].mac, str(TURNS)], timeout=200)
        _, errors = waits.communicate(timeout=60)
    assert served.returncode == 0, served
    assert waits.returncode == 0, errors
    counters = json.loads(served.stdout)
    text = trace.read_text()
    netlink = set(re.findall(r"socket\(AF_NETLINK.* = \d+<(.+)>$", text, re.M))
    # PID NAME(DESCRIPTOR<SOCKET>, ...
    calls = re.findall(r"^\d+ +((?:send|recv)\w*)\(\d+<([^>]+)>", text, re.M)
    at_open = [name for name, socket in calls if socket in netlink]
    sends = sum(name.startswith("send") for name, socket in calls if socket not in netlink)
    receives = sum(name.startswith("recv") for name, socket in calls if socket not in netlink)
    # The link requests the interface's largest super-frame once, when it opens (csrc/link/eth_super.c).
    assert at_open == ["sendto", "recvfrom"], calls
    assert receives == 0, calls
    assert counters["messages_sent"] == counters["messages_received"] == TURNS
    # A machine that keeps a process waiting may cost some acknowledgements of their own.
    alone = counters["acks_sent"] + counters["frames_retransmitted"] + counters["naks_sent"] + counters["probes_sent"]
    assert counters["frames_sent"] == TURNS + alone, counters
    # Requests are repeated until the other process has opened its NIC. The end of the connection takes a few frames.
    frames = counters["connecting"] + counters["frames_sent"]
    assert frames <= sends <= frames + 60, (sends, counters)
