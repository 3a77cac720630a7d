"""Programs in the style of 2000 to 2005: gnu89, vipl.h alone, and the habits of the time (tests/programs/)."""

# ruff: noqa: F401, F811 - fixtures are imported by name

import os
import re
import subprocess

import needs
import pytest
from c_place import PROGRAMS, Place, build, finish, place, run_pair, testbed

from viakit import config

OLD = ["-std=gnu89", "-Wall", "-Wextra", "-Wpedantic", "-Werror", "-Wno-unused-function", "-O1", "-g"]
UNRELIABLE, DELIVERY, RECEPTION = "1", "2", "4"


def run_old(name, place, build, *arguments, **options):
    """Run a pair of the program's server and client; both say "done" at their end."""
    program = build(PROGRAMS / f"{name}.c", *OLD, **options)
    said = run_pair(place, [program, None, "-", *arguments], [program, None, place.server_name, *arguments])
    for text in said:
        assert text.splitlines()[-1].startswith("done"), said


# ---------------------------------------------------------------- what programs pass, and what they expect


@pytest.mark.parametrize("memory", ["tag", "null", "none"])
@pytest.mark.parametrize("vi", ["tag", "null"])
def test_a_null_tag_matches_any(vi, memory, place, build):
    run_old("notag", place, build, vi, memory)


@pytest.mark.parametrize("too_long", ["65", "60000"])
def test_a_receive_may_run_past_its_region(too_long, place, build):
    run_old("tail", place, build, too_long)


def test_a_client_that_starts_first_repeats_its_request(place, build):
    """On shm and udp the client gets NO_MATCH. On an Ethernet its request is repeated until a server replies."""
    program = build(PROGRAMS / "oldnames.c", *OLD)
    client = place.popen(1, [program, place.devices[1], place.server_name])
    if not place.devices[1].startswith("eth"):
        assert client.stdout.readline() == "no server waits yet\n"
    server = place.popen(0, [program, place.devices[0], "-"])
    finish(server, client)


def test_names_of_the_time(place, build):
    run_old("oldnames", place, build)


# ---------------------------------------------------------------- exit() without VipCloseNic


@pytest.mark.parametrize("size", ["10", "60000"])
@pytest.mark.parametrize("level", [DELIVERY, RECEPTION])
def test_the_last_message_is_acknowledged_by_exit(level, size, place, build):
    run_old("lastword", place, build, level, "6", size)


@pytest.mark.parametrize("mode", ["callback", "thread", "signal", "fork"])
def test_exit_at_bad_moments(mode, place, build):
    run_old("lastword", place, build, RECEPTION, "6", "3000", mode)


def test_exit_of_a_program_with_the_library_inside(place, build):
    run_old("lastword", place, build, RECEPTION, "6", "3000", static=True)


def test_the_library_stays_when_it_is_closed():
    """Threads of open NICs run in it."""
    tool = needs.tool("readelf")
    out = subprocess.run([tool, "-d", str(config.library())], capture_output=True, text=True, check=True).stdout
    assert re.search(r"FLAGS_1.*NODELETE", out)


# ---------------------------------------------------------------- a NIC that is never closed


def test_the_arena_of_shm_is_not_readable_before_it_is_used(build):
    program = build(PROGRAMS / "leftopen.c", *OLD)
    (said,) = finish(Place("").popen(0, [program, f"shm:leftopen{os.getpid()}"]))
    assert int(said) < 16 << 20
