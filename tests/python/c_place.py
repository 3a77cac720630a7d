"""Run pairs of C programs, compiled with the installed package: on one host by shm, or on two by eth and udp."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
from pathlib import Path

import needs
import pytest

from viakit import config

CHECKOUT = Path(__file__).resolve().parents[2]
PROGRAMS = CHECKOUT / "tests" / "programs"
LIMIT_S = 60.0


@pytest.fixture(scope="session")
def build(tmp_path_factory):
    """Compile a program against the installed library, once per set of flags, and return its path."""
    folder = tmp_path_factory.mktemp("programs")
    made = {}

    def compile_one(source, *flags, static=False, compiler="cc"):
        key = (source, flags, static, compiler)
        if key not in made:
            made[key] = folder / f"{Path(source).stem}-{len(made)}"
            libs = ["-x", "none", *config.libs(static=static)]  # the flags name the language of the source only
            compile_to(made[key], source, *flags, *config.cflags(), libs=libs, compiler=compiler)
        return made[key]

    return compile_one


def compile_to(target, source, *flags, libs, compiler="cc"):
    compiler = needs.tool(compiler if shutil.which(compiler) else {"cc": "gcc", "c++": "g++"}[compiler])
    command = [compiler, *flags, str(source), "-o", str(target), *libs, "-lpthread"]
    result = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S, check=False, cwd="/")
    assert result.returncode == 0, f"{shlex.join(command)}\n{result.stderr}"


class Place:
    """A link, and the one or two hosts on which a pair of programs runs."""

    def __init__(self, device, a=None, b=None, server_name="localhost", devices=None):
        self.devices = devices or (device, device)
        self.hosts = (a, b)
        self.server_name = server_name  # the name that the client uses

    def popen(self, side, command, **more):
        host = self.hosts[side]
        more = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True, "cwd": "/", **more}
        return (host.popen if host else subprocess.Popen)([str(part) for part in command], **more)


@pytest.fixture(scope="session")
def testbed():
    with needs.hosts() as opened:
        yield opened


@pytest.fixture(params=["shm", "eth", "udp"])
def place(request):
    if request.param == "shm":
        return Place(f"shm:programs{os.getpid()}")
    a, b = request.getfixturevalue("testbed").hosts
    if request.param == "eth":
        return Place("eth:eth0", a, b, server_name=a.mac)
    return Place(None, a, b, server_name=a.address, devices=(f"udp:{a.address}", f"udp:{b.address}"))


def finish(*processes, limit_s=LIMIT_S):
    """Wait for all programs and return their output. Each must end with status 0 and an empty standard error."""
    said = []
    try:
        for process in processes:
            out, err = process.communicate(timeout=limit_s)
            assert (process.returncode, err) == (0, ""), (process.args, out, err)
            said.append(out)
    finally:
        for process in processes:
            if process.poll() is None:
                process.kill()
                process.communicate()
    return said


def run_pair(place, server, client, limit_s=LIMIT_S):
    """Run both programs to their end. Each is a list of a program and its arguments; None stands for the device."""
    commands = [
        [place.devices[i] if part is None else part for part in each] for i, each in enumerate((server, client))
    ]
    processes = [place.popen(0, commands[0])]
    processes.append(place.popen(1, commands[1]))
    return finish(*processes, limit_s=limit_s)
