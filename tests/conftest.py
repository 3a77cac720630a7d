"""Rules and fixtures for all Python tests.

- The tests run on the installed package, never on the source tree.
- Randomness comes from one seed, which is printed; VIAKIT_SEED=... repeats a run.
- With CI=true, a skip whose reason begins with "missing package" is a failure.
- After every test no object of the C library is alive, and no file of viakit is left in /dev/shm.
- After the last test no process is left that a test started.
- With --until TIME, in seconds since 1970, the tests that have not started by then are skipped (.ci/run).
"""

from __future__ import annotations

import contextlib
import gc
import os
import random
import signal
import sys
import textwrap
import time
import uuid
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from leftovers import SHM, in_use, marked

TESTS = Path(__file__).resolve().parent
CHECKOUT = TESTS.parent
IN_CI = os.environ.get("CI") == "true"
SEED = int(os.environ.get("VIAKIT_SEED", "0")) or random.SystemRandom().randrange(1, 2**31)
RUN = uuid.uuid4().hex
GRACE_S = float(os.environ.get("VIAKIT_TEST_GRACE_S", "30"))  # time limit for processes and files to disappear


# ---------------------------------------------------------------- the session


# Concurrent runs of tests on one machine, and the workers of one run, must not refuse each other's measurements
# (viakit.lab._worker).
os.environ["VIAKIT_LAB_FLOOR"] = f"/{uuid.uuid4().hex}"


_config: pytest.Config


def pytest_addoption(parser: pytest.Parser) -> None:
    text = "skip the tests that have not started by then; in seconds since 1970, as of `date +%%s`"
    parser.addoption("--until", type=float, metavar="TIME", help=text)


def pytest_configure(config: pytest.Config) -> None:
    global _config
    _config = config
    # A shell starts background commands (`make test &` in a script) with SIGINT ignored. Python then installs no
    # handler, all children inherit that, and no test of Ctrl-C can pass.
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    os.environ["VIAKIT_TEST_RUN"] = (
        RUN  # every process started by a test inherits it, so that left processes can be found
    )
    if config.pluginmanager.hasplugin("hypothesispytest"):
        import hypothesis

        # No limit of time: neither of a case nor, by the check "too slow", of its making. A busy machine exceeds both.
        slow = [hypothesis.HealthCheck.too_slow]
        hypothesis.settings.register_profile("viakit", deadline=None, suppress_health_check=slow, print_blob=True)
        hypothesis.settings.load_profile("viakit")


def pytest_report_header(config: pytest.Config) -> list[str]:
    import viakit

    return [f"viakit: {viakit.__version__} from {Path(viakit.__file__).parent}", f"seed: VIAKIT_SEED={SEED}"]


@pytest.hookimpl(trylast=True)  # behind the letter that pytest prints
def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Print the name of a failed test at once. A run that is stopped never prints the list at its end."""
    terminal = _config.pluginmanager.get_plugin("terminalreporter") if report.failed else None
    if terminal and not hasattr(_config, "workerinput"):  # the workers of a run print nothing
        crash = getattr(report.longrepr, "reprcrash", None)
        reason = crash.message.partition("\n")[0] if crash else ""
        terminal.write_line(f"\nfailed in {report.when}: {report.nodeid}: {reason}")


@pytest.fixture(scope="session", autouse=True)
def _installed_package() -> None:
    """Fail early if this process, or a child in its working folder, would import the source tree."""
    import viakit

    assert Path(viakit.__file__).resolve().parent != CHECKOUT / "viakit", "run the tests by `make test`"
    os.chdir(TESTS)


@pytest.fixture(scope="session", autouse=True)
def _no_process_left(_installed_package: None) -> Iterator[None]:
    yield
    left = wait_until_empty(processes_of_this_run)
    assert not left, f"processes are left: {left}"


# ---------------------------------------------------------------- randomness


@pytest.fixture
def seed(request: pytest.FixtureRequest) -> int:
    """Return the seed of this test. It depends on VIAKIT_SEED and not on the other tests of the run."""
    value = SEED ^ zlib.crc32(request.node.nodeid.encode())
    print(f"seed of this test: {value} (VIAKIT_SEED={SEED})")
    return value


@pytest.fixture
def rng(seed: int):
    """Return a NumPy generator from `seed`."""
    import numpy as np

    return np.random.default_rng(seed)


# ---------------------------------------------------------------- kernels


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Run a test with the fixture `kernel_level` once per level that this machine has (test_app_each.py)."""
    if "kernel_level" in metafunc.fixturenames:
        from viakit import _kernels

        metafunc.parametrize("kernel_level", _kernels.levels(), indirect=True)


@pytest.fixture
def kernel_level(request: pytest.FixtureRequest) -> Iterator[str]:
    """Select each level of vector instructions of viakit._kernels that this machine has, in turn."""
    from viakit import _kernels

    before = _kernels.level()
    _kernels.set_level(request.param)
    yield request.param
    _kernels.set_level(before)


# ---------------------------------------------------------------- fixtures of several files


@pytest.fixture
def program(tmp_path: Path) -> Callable[[str], str]:
    """Write a program of several ranks, and return its path (comm_job.py has its first lines)."""
    import comm_job

    return lambda text: comm_job.write(tmp_path, text)


@pytest.fixture
def mark(monkeypatch: pytest.MonkeyPatch) -> bytes:
    """Set a word in the environment that identifies all processes of this test (leftovers.marked)."""
    word = uuid.uuid4().hex
    monkeypatch.setenv("VIAKIT_TEST_MARK", word)
    return f"VIAKIT_TEST_MARK={word}".encode()


@pytest.fixture
def pair(nic):
    """Return two connected VIs of the test's own `nic`."""
    from via_pair import connected

    return connected(nic)


@pytest.fixture
def lab_text(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Use the laboratory as plain Python does; afterwards check that no experiment of the test is running."""
    from viakit import lab

    monkeypatch.setenv("VIAKIT_LAB", "text")
    yield
    lab.stop()
    assert lab.running() is None


# ---------------------------------------------------------------- skips


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """If the time may be over before the last test, run the files with slow tests last."""
    if config.getoption("--until") is not None:
        slow = {item.path for item in items if item.get_closest_marker("slow")}
        items.sort(key=lambda item: item.path in slow)


def pytest_runtest_setup(item: pytest.Item) -> None:
    until = item.config.getoption("--until")
    if until is not None and time.time() > until:
        pytest.skip("not run: the time was over")  # tools/ci_summary.py counts these


def missing_package(report: pytest.TestReport | pytest.CollectReport) -> str | None:
    """Return the reason of a skip for a missing package, or None."""
    if not report.skipped or hasattr(report, "wasxfail") or not isinstance(report.longrepr, tuple):
        return None
    reason = str(report.longrepr[2]).removeprefix("Skipped: ")
    return reason if reason.startswith("missing package") else None


def fail_in_ci(report: pytest.TestReport | pytest.CollectReport) -> None:
    reason = missing_package(report)
    if IN_CI and reason:
        report.outcome = "failed"
        report.longrepr = f"skipped for a {reason}, which CI has to have"


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo):
    report = yield
    fail_in_ci(report)
    return report


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(collector: pytest.Collector):
    report = yield
    fail_in_ci(report)
    return report


# ---------------------------------------------------------------- nothing left behind


@pytest.fixture
def live_objects() -> Callable[[], dict[str, int]]:
    """Return a function without arguments that counts the live objects of each kind in the C library."""
    from viakit import via

    return via.live_objects


@pytest.fixture(autouse=True)
def _nothing_left() -> Iterator[None]:
    """Check after the test that no object of the C library is alive and no file of viakit is in /dev/shm."""
    before = shm_files()
    yield
    alive = wait_until_empty(objects_alive)
    assert not alive, f"objects of the C library outlived the test: {alive}"
    left = wait_until_empty(lambda: [name for name in shm_files() - before if not in_use(name)])
    assert not left, f"files are left in /dev/shm: {left}"


def objects_alive() -> dict[str, int]:
    """Return the kinds of live objects with their numbers; empty if viakit.via was not loaded."""
    via = sys.modules.get("viakit.via")
    count = getattr(via, "live_objects", None)
    if count is None:
        return {}
    alive = {kind: number for kind, number in count().items() if number}
    if alive:
        gc.collect()
        alive = {kind: number for kind, number in count().items() if number}
    return alive


def shm_files() -> set[str]:
    """Return the names in /dev/shm that viakit made and this user owns."""
    found = set()
    for path in SHM.glob("*viakit*"):
        with contextlib.suppress(OSError):
            if path.lstat().st_uid == os.getuid():
                found.add(path.name)
    return found


def processes_of_this_run() -> list[str]:
    """Return the processes that inherited this run's mark, except this one and multiprocessing's own helpers."""
    found = marked(f"VIAKIT_TEST_RUN={RUN}".encode())
    return [f"{pid}: {command}" for pid, command in found.items() if "multiprocessing.resource_tracker" not in command]


def wait_until_empty(look):
    """Call *look* until its result is empty or the time is over, and return its last result."""
    deadline = time.monotonic() + GRACE_S
    while (found := look()) and time.monotonic() < deadline:
        time.sleep(0.02)  # between two checks of the condition, not instead of one
    return found


@pytest.fixture
def script(tmp_path: Path) -> Callable[[str], str]:
    """Write the text of a program to a file, and return its path."""

    def write(text: str) -> str:
        path = tmp_path / "prog.py"
        path.write_text(textwrap.dedent(text), encoding="utf-8")
        return str(path)

    return write
