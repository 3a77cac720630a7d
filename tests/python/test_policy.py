"""A policy of the message engine must match the requested protocol; otherwise an error reports it."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from viakit import _core
from viakit.launch import policy as _policy
from viakit.launch.options import CHANNELS
from viakit.launch.runner import Options

WORLD = """
import viakit
comm = viakit.world({})
print(comm.world.channel, comm.world.policy()["name"], comm is viakit.world(comm.world.channel))
"""


def run(program: str, *words: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "viakit", "run", "-n", "1", *words, sys.executable, "-c", program]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, env=os.environ | environment)


@pytest.mark.parametrize("policy", _core.policies())
def test_each_policy_is_for_one_protocol(policy):
    channel = _core.policy_channel(policy)
    assert channel in CHANNELS, "a new channel is also a protocol: add it to CHANNELS of viakit/launch/options.py"
    assert _policy.chosen(None, policy) == channel
    assert _policy.complete(channel, f"{policy},credits=16") == f"{policy},credits=16"
    for other in set(CHANNELS) - {channel}:
        with pytest.raises(ValueError, match=f"is for protocol '{channel}', but the protocol is '{other}'") as said:
            Options(ranks=1, protocol=other, policy=policy).check()
        assert f"use protocol '{channel}', or one of the policies for '{other}': {other}" in str(said.value)
    with pytest.raises(ValueError, match="has no policies of viakit"):
        Options(ranks=1, protocol="mpi:mpich", policy=policy).check()


def test_changes_go_with_any_protocol():
    for protocol in ("via", "bip", "tcp"):
        assert _policy.complete(protocol, "credits=16") == f"{protocol},credits=16"
        assert _policy.complete(protocol, None) == protocol
        Options(ranks=1, protocol=protocol, policy="credits=16").check()
    assert _policy.chosen(None, "credits=16") == _policy.chosen(None, None) == "via"
    with pytest.raises(ValueError, match="no field 'feathers'"):
        _policy.complete("via", "feathers=2")


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("rendezvous=7", "rendezvous is 7: give rput to r3, or calibrated"),
        ("pool_bytes=-1", "pool_bytes is -1: give 0 or more"),
        ("rdma_from=-4K", "rdma_from is -4096: give 0 or more"),
        ("credits=0", "credits is 0: give 1 or more, or calibrated"),
        ("reliability=3", "reliability is 3: give 2, or 4"),
        ("daemon_bytes=9K", "daemon_bytes is 9216: give 1 to 8192"),
    ],
)
def test_a_number_that_a_field_cannot_have(change, words):
    with pytest.raises(ValueError, match=words):
        _policy.complete("tcp", change)
    done = run(WORLD.format("'tcp'"), VIAKIT_POLICY=change)
    assert done.returncode == 1
    assert words in done.stderr, done.stderr


def test_a_route_by_daemons_needs_the_channel_that_has_them():
    done = run(WORLD.format("'via', policy='via,route=daemon'"))
    assert done.returncode == 1
    assert "route is daemon, but channel via has no daemons: give channel tcp" in done.stderr, done.stderr


def test_run_refuses_what_does_not_go_together():
    done = run("print('it ran')", "--protocol", "tcp", "--policy", "via")
    assert (done.returncode, done.stdout) == (2, ""), done.stdout
    assert "'via', which is for protocol 'via', but the protocol is 'tcp'" in done.stderr


@pytest.mark.parametrize("name", ["VIAKIT_POLICY", "VIAKIT_MSG"])
def test_a_world_names_who_said_it(name):
    done = run(WORLD.format("'tcp'"), **{name: "mvich-rget"})
    assert done.returncode == 1
    assert f"MPI_ERR_ARG: {name} is 'mvich-rget', which is for protocol 'via'" in done.stderr, done.stderr
    done = run(WORLD.format("'bip', policy='tcp'"), **{name: "bip"})
    assert done.returncode == 1
    assert "MPI_ERR_ARG: policy is 'tcp', which is for protocol 'tcp'" in done.stderr, done.stderr


@pytest.mark.parametrize("given", ["", "policy='mpich-p4'"])
def test_a_policy_says_by_itself_which_protocol(given):
    done = run(WORLD.format(given), **({} if given else {"VIAKIT_POLICY": "mpich-p4"}))
    assert done.stdout.split() == ["tcp", "mpich-p4", "True"], done.stderr
