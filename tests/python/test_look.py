"""One protocol has one look in every picture, and looks can be distinguished in grey."""

import itertools

import pytest

from viakit import _core
from viakit.measure import barrier, endpoints, look

NAMES = [*endpoints.protocols(), "via", "bip", *(f"mpi:{one}" for one in ("mpich", "openmpi"))]


def test_every_protocol_is_in_the_table():
    chosen = look.looks(endpoints.protocols())
    for row in endpoints.protocols().values():
        colour, marker, *outline = row.look.split()  # "vermilion o", in the protocol's row
        assert chosen[row.name] == look.Look(look.COLOURS[colour], marker, hollow=outline == ["outline"])
    pairs = [(one.colour, one.marker, one.hollow) for one in chosen.values()]
    assert len(set(pairs)) == len(pairs)


def test_the_look_does_not_depend_on_the_others_of_the_picture():
    for name in NAMES:
        assert look.look(name) == look.looks(NAMES)[name] == look.looks(reversed(NAMES))[name]


def test_members_of_a_family_differ_in_grey():
    families = {}
    for name in endpoints.protocols():
        one = look.look(name)
        families.setdefault(one.colour, []).append((one.marker, one.hollow))
    for markers in families.values():
        assert len(set(markers)) == len(markers)
    assert set(families) <= set(look.PALETTE)


@pytest.mark.parametrize(
    "compared",
    [
        ("via-shm", "unix"),
        ("bip-shm", "unix"),
        ("via-eth", "tcp", "udp", "zmq", "frames"),
        ("via-udp", "tcp", "udp", "unix"),
        ("via-shm", "msg-via", "mpi:mpich", "mpi:openmpi", "tcp"),
    ],
)
def test_protocols_that_lessons_and_pages_compare_have_markers_of_their_own(compared):
    markers = [look.look(name).marker for name in compared]
    assert len(set(markers)) == len(markers)


def test_policies_have_the_colour_of_their_channel_and_a_dash_and_a_marker_of_their_own():
    chosen = {name: look.look(name) for name in _core.policies() if name not in ("via", "bip", "tcp")}
    assert len(chosen) > 10
    for name, one in chosen.items():
        channel = _core.policy_channel(name)
        base = look.look(f"msg-{channel}")
        assert one.colour == base.colour
        assert one.marker != base.marker
        assert one == look.look(f"msg-{channel}:{name}") == look.look(f"{channel}:{name}")
        assert one.dash
    for one, other in itertools.combinations(chosen.values(), 2):
        assert (one.colour, one.dash) != (other.colour, other.dash)
        assert (one.colour, one.marker, one.hollow) != (other.colour, other.marker, other.hollow)


def test_algorithms_differ_and_keep_their_look():
    names = list(barrier.algorithms())
    chosen = look.looks(names)
    pairs = {(one.colour, one.marker) for one in chosen.values()}
    assert len(pairs) == len(names)
    for n in range(1, len(names)):
        assert look.looks(names[:n]) == {name: chosen[name] for name in names[:n]}
        assert look.look(names[n]) == chosen[names[n]]
    some = look.looks(["rdma", "message", "mpi:openmpi"])
    assert len({one.colour for one in some.values()}) == 3
    assert some["mpi:openmpi"] == look.look("mpi:openmpi")


@pytest.mark.parametrize("n_names", [6, 7, 12])
def test_names_that_the_table_lacks_differ_in_grey(n_names):
    machines = ("barrier-cluster-3", "ethernet-100g", "infiniband-ndr", "a", "b", "c")
    names = [f"{algorithm}, {machine}" for machine in machines for algorithm in ("one", "another")][:n_names]
    chosen = look.looks(names).values()
    assert len({one.marker for one in chosen}) == n_names
    assert len({one.colour for one in chosen}) == min(n_names, len(look.PALETTE)) or n_names > len(look.PALETTE)


def test_curves_that_are_drawn_keep_their_looks_while_others_come():
    drawn = {}
    for name in ("a", "b", "rdma", "c", "tcp", "d"):
        more = look.looks([name], drawn)
        assert {one: more[one] for one in drawn} == drawn
        assert list(more) == [*drawn, name]
        drawn = more
    assert len(set(drawn.values())) == len(drawn)


def test_ways_to_wait_and_results_differ():
    ways = [look.look("tcp", wait=wait, level=level) for wait in ("poll", "block") for level in ("c", "python")]
    assert len({one.dash for one in ways}) == 4
    assert {one.colour for one in ways} == {look.BLUE}
    assert look.look("tcp", file=1).hollow
    assert look.look("tcp", file=1).trace()["marker"]["symbol"] == "diamond-open"
    assert look.look("tcp").line()["linestyle"] == "-"
    assert look.look("unix").trace()["line"]["color"] == look.GREY, "INK cannot be read on a dark page"


@pytest.mark.parametrize("places", [[0.5, 0.5, 0.5], [0.0, 1.0], [0.99, 1.0, 0.98], [0.02, 0.01, 0.0, 0.03]])
def test_labels_move_apart_and_keep_their_order(places):
    moved = look.spread(places, 0.1)
    assert all(b - a >= 0.1 - 1e-9 for a, b in itertools.pairwise(sorted(moved)))
    assert all(-1e-9 <= one <= 1 + 1e-9 for one in moved)
    assert sorted(range(len(places)), key=lambda i: (places[i], i)) == sorted(range(len(moved)), key=lambda i: moved[i])


def test_an_algorithm_keeps_its_colour_on_each_machine():
    machines = ("barrier-cluster-3", "infiniband-ndr", "ethernet-100g")
    chosen = look.looks(f"{name}, {machine}" for machine in machines for name in ("rdma", "message"))
    for name, one in chosen.items():
        assert one.colour == look.look(name.partition(",")[0]).colour, name
    assert len({one.marker for one in chosen.values()}) == len(chosen), "curves of one colour differ in their markers"
    assert chosen["rdma, barrier-cluster-3"] == look.look("rdma")


def test_the_papers_mpich_and_mvich_differ_in_grey():
    chosen = look.looks(["mpich-p4", "mvich-rput", "via", "lam-c2c", "mvich-r3"])
    assert len({(one.marker, one.hollow) for one in chosen.values()}) == len(chosen)


def test_ways_to_retransmit_have_one_colour_each():
    names = [f"{way}, {loss} lost" for way in ("selective", "go-back-n") for loss in ("1.0%", "5.0%")]
    chosen = look.looks(["selective", "go-back-n", *names])
    for name, one in chosen.items():
        assert one.colour == chosen[name.partition(",")[0]].colour, name
    assert len(set(chosen.values())) == len(chosen)
