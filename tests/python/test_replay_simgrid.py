"""The replay beside SimGrid (Debian: libsimgrid-dev): the same schedules, latency and bandwidth give the same times.

SimGrid shares a link among all messages that cross it; the replay's ports take one after the other. So the schedules
are those in which a link has one message at a time: exchanges with one peer, and trees whose sends wait for each other.
"""

import re
import shutil
import subprocess

import pytest

from viakit import replay
from viakit.machines.cost import Path
from viakit.replay.model import Model

BYTES_PER_S = 100e6
PLATFORM = """<?xml version="1.0"?>
<!DOCTYPE platform SYSTEM "https://simgrid.org/simgrid.dtd">
<platform version="4.1">
<cluster id="c" prefix="h" suffix="" radical="0-{last}" speed="1Gf" bw="{bandwidth}Bps" lat="{half}s"
 sharing_policy="SPLITDUPLEX"/>
</platform>
"""
PLAIN = ["network/model:CM02", "network/TCP-gamma:0", "network/crosstraffic:0", "smpi/os:0:0:0", "smpi/or:0:0:0",
         "smpi/bw-factor:1", "smpi/lat-factor:1", "smpi/simulate-computation:no"]  # fmt: skip

pytestmark = pytest.mark.skipif(shutil.which("smpirun") is None, reason="SimGrid is not installed (libsimgrid-dev)")


def simgrid_s(schedule, folder, latency_s, detached):
    """Return SimGrid's end of a schedule."""
    n = len(schedule.ranks)
    index = replay.write_tit(schedule, folder)
    (folder / "platform.xml").write_text(PLATFORM.format(last=n - 1, bandwidth=BYTES_PER_S, half=latency_s / 2))
    (folder / "hosts").write_text("".join(f"h{i}\n" for i in range(n)))
    threshold = 10**9 if detached else 0
    settings = [*PLAIN, f"smpi/async-small-thresh:{threshold}", f"smpi/send-is-detached-thresh:{threshold}"]
    done = subprocess.run(
        ["smpirun", "-np", str(n), "-platform", folder / "platform.xml", "-hostfile", folder / "hosts",
         "-replay", index,
         *(f"--cfg={one}" for one in settings), "--log=smpi_replay.thresh:info"],
        cwd=folder, capture_output=True, text=True, timeout=60,
    )  # fmt: skip
    found = re.search(r"Simulation time ([\d.]+)", done.stdout + done.stderr)
    assert found, done.stdout + done.stderr
    return float(found[1])


def costs(latency_s, detached):
    """Return the replay's model of the same network."""
    ns = 1e9 / BYTES_PER_S
    path = Path(byte_ns=(0, 0, ns, ns, 0, 0), delay_ns=latency_s * 1e9, payload=float(1 << 40), cut=1.0)
    return Model(path, path, path, path, eager_limit=1e12 if detached else 0.0)


@pytest.mark.parametrize(
    ("schedule", "latency_s", "detached"),
    [
        (replay.barrier("message", 16, repeats=20), 50e-6, True),
        (replay.barrier("rdma", 13, repeats=20), 50e-6, True),
        (replay.barrier("dissemination", 12, repeats=20), 50e-6, True),
        (replay.collective("alltoall", 8, 20000, True), 10e-6, True),
        (replay.collective("allgather", 9, 50000, True), 10e-6, True),
        (replay.collective("allreduce", 8, 80000), 10e-6, True),
        (replay.collective("bcast", 16, 1 << 20), 10e-6, False),
        (replay.collective("reduce", 13, 1 << 20), 10e-6, False),
    ],
    ids=lambda one: one.title.replace(" ", "-") if isinstance(one, replay.Schedule) else "",
)
def test_the_same_times(schedule, latency_s, detached, tmp_path):
    ours = replay.run(schedule, costs(latency_s, detached)).end_s
    theirs = simgrid_s(schedule, tmp_path, latency_s, detached)
    print(f"{schedule.title}: replay {ours * 1e6:.0f} us, SimGrid {theirs * 1e6:.0f} us")
    assert ours == pytest.approx(theirs, rel=0.05)
