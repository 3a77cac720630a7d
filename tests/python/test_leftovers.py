"""The search for processes that a test has left behind (leftovers.py)."""

import os
import subprocess

from leftovers import marked


def test_a_process_that_executes_programs_all_the_time_is_found(tmp_path, mark):
    """Meanwhile the kernel shows an empty environment and an empty command for it."""
    again = tmp_path / "again"
    again.write_text('#!/bin/sh\nexec "$0"\n')
    again.chmod(0o700)
    with subprocess.Popen([again], env=dict(os.environ)) as process:
        try:
            missed = sum(process.pid not in marked(mark) for _ in range(300))
        finally:
            process.kill()
    assert not missed


def test_a_process_that_has_ended_is_not_found(mark):
    with subprocess.Popen(["true"]) as process:
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # it stays a zombie
        assert process.pid not in marked(mark)
    assert not marked(mark)
