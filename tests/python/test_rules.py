"""The rules of conftest.py hold: each is broken on purpose in a separate pytest, which must fail for it."""

import os
import signal
import subprocess
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]


def run_pytest(tmp_path: Path, code: str, **env: str) -> str:
    """Run *code* as a test module under the rules; return what pytest printed."""
    module = tmp_path / "test_broken.py"
    module.write_text(code)
    result = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "conftest",
            "--rootdir",
            str(tmp_path),
            str(module),
        ],
        env={
            **os.environ,
            "PYTHONPATH": f"{TESTS}{os.pathsep}{TESTS / 'python'}",
            "VIAKIT_TEST_GRACE_S": "0.1",
            "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1",
            **env,
        },
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    return result.stdout + result.stderr


def test_a_missing_package_is_a_failure_in_ci_only(tmp_path):
    code = """
import pytest

def test_one():
    pytest.skip("missing package tshark: sudo apt-get install tshark")

def test_two():
    pytest.skip("this machine has one core")
"""
    assert "2 skipped" in run_pytest(tmp_path, code, CI="")
    output = run_pytest(tmp_path, code, CI="true")
    assert "1 failed, 1 skipped" in output
    assert "skipped for a missing package tshark" in output


def test_a_module_that_is_skipped_for_a_missing_package_is_a_failure_in_ci(tmp_path):
    code = 'import pytest\npytest.importorskip("no_such_module", reason="missing package no_such_module")\n'
    assert "1 skipped" in run_pytest(tmp_path, code, CI="")
    assert "1 error" in run_pytest(tmp_path, code, CI="true")


def test_ctrl_c_works_where_the_tests_were_started_with_it_ignored(tmp_path):
    """As a shell starts what it puts into the background."""
    code = """
import os, signal, subprocess, sys
import pytest

def test_here():
    with pytest.raises(KeyboardInterrupt):
        os.kill(os.getpid(), signal.SIGINT)

def test_children():
    code = "import signal; assert signal.getsignal(signal.SIGINT) is signal.default_int_handler"
    subprocess.run([sys.executable, "-c", code], check=True)
"""
    before = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        assert "2 passed" in run_pytest(tmp_path, code)
    finally:
        signal.signal(signal.SIGINT, before)


def test_a_file_that_is_left_is_an_error(tmp_path):
    name = f"viakit-left-{os.getpid()}"
    code = f"def test_leave():\n    open('/dev/shm/{name}', 'w').close()\n"
    try:
        output = run_pytest(tmp_path, code)
    finally:
        Path("/dev/shm", name).unlink(missing_ok=True)
    assert "1 passed, 1 error" in output
    assert name in output


def test_a_process_that_is_left_is_an_error(tmp_path):
    # It ends by itself when the pipe to this test's child closes, which is when that pytest ends.
    code = """
import subprocess

def test_leave():
    global child
    child = subprocess.Popen(["cat"], stdin=subprocess.PIPE)
"""
    output = run_pytest(tmp_path, code)
    assert "processes are left" in output
    assert ": cat" in output


def test_an_object_that_is_left_is_an_error(tmp_path):
    code = """
import sys, types

def test_leave():
    sys.modules["viakit.via"] = types.SimpleNamespace(live_objects=lambda: {"nic": 1, "vi": 0})
"""
    output = run_pytest(tmp_path, code)
    assert "1 passed, 1 error" in output
    assert "{'nic': 1}" in output


def test_the_seed_is_printed_and_can_be_given(tmp_path):
    code = "def test_seed(seed):\n    assert seed == 0\n"
    output = run_pytest(tmp_path, code, VIAKIT_SEED="12345")
    assert "VIAKIT_SEED=12345" in output
    assert "seed of this test" in output
