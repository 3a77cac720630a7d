"""One rank of tools/mpi4py_suite.py: run one test module of mpi4py's suite and log the outcome of each test.

    mpi4py_rank.py SUITE MODULE LOG LIMIT             LOG: prefix of a file per rank, LOG.RANK
    environment: LEFT_OUT, patterns of tests to skip, one a line

The log is written line by line, so that it also shows where a rank crashed or was ended: "run ID", then "end ID" and a
JSON object. If a test takes longer than LIMIT seconds, the tracebacks of all threads are logged and the rank exits. The
other ranks, which the launcher then ends, log theirs.
"""

import faulthandler
import fnmatch
import importlib
import json
import os
import signal
import sys
import traceback
import unittest

HANG_STATUS = 97


def open_log(prefix: str):
    """Open the log of this rank. Its number comes from the launcher, so that failures of the import are logged, too."""
    rank = next(
        (os.environ[name] for name in ("VIAKIT_RANK", "OMPI_COMM_WORLD_RANK", "PMI_RANK") if name in os.environ), "0"
    )
    return open(f"{prefix}.{rank}", "w", buffering=1, encoding="utf-8", errors="replace")


class Result(unittest.TestResult):
    """Outcome of each test, written to the log when the test ends."""

    def __init__(self, log, limit: float) -> None:
        super().__init__()
        self.log, self.limit = log, limit
        self.outcome, self.detail = "passed", ""

    def startTest(self, test):
        super().startTest(test)
        self.outcome, self.detail = "passed", ""
        self.log.write(f"run {test.id()}\n")
        faulthandler.dump_traceback_later(self.limit, exit=True, file=self.log)

    def stopTest(self, test):
        super().stopTest(test)
        faulthandler.cancel_dump_traceback_later()
        self._end(test.id(), self.outcome, self.detail)

    def _end(self, name: str, outcome: str, detail: str) -> None:
        self.log.write(f"end {name} {json.dumps({'outcome': outcome, 'detail': detail})}\n")

    def _set(self, test, outcome: str, error) -> None:
        detail = "".join(traceback.format_exception(*error))[-3000:]
        if isinstance(test, unittest.suite._ErrorHolder):  # setUpClass or setUpModule: there was no startTest
            self._end(test.id(), outcome, detail)
        else:
            self.outcome, self.detail = outcome, detail

    def addError(self, test, err):
        self._set(test, "error", err)

    def addFailure(self, test, err):
        self._set(test, "failed", err)

    def addSubTest(self, test, subtest, err):
        if err is not None:
            self._set(test, "failed" if issubclass(err[0], AssertionError) else "error", err)

    def addSkip(self, test, reason):
        if isinstance(test, unittest.suite._ErrorHolder):
            self._end(test.id(), "skipped", reason)
        else:
            self.outcome, self.detail = "skipped", reason

    def addUnexpectedSuccess(self, test):
        self.outcome, self.detail = "failed", "unexpected success"


class Loader(unittest.TestLoader):
    """Loader that leaves out the tests whose names match a pattern."""

    def __init__(self, left_out: list[str]) -> None:
        super().__init__()
        self.left_out = left_out

    def getTestCaseNames(self, case):
        prefix = f"{case.__module__}.{case.__qualname__}."
        names = super().getTestCaseNames(case)
        return [name for name in names if not any(fnmatch.fnmatchcase(prefix + name, p) for p in self.left_out)]


def main(suite: str, module: str, prefix: str, limit: str) -> int:
    """Run the module; return 0 if all its tests were run, whatever their outcomes."""
    sys.dont_write_bytecode = True
    log = open_log(prefix)
    sys.path.insert(0, os.path.join(suite, "test"))
    sys.modules["cupy"] = sys.modules["numba"] = None  # as the suite's own main.py does without a GPU
    faulthandler.enable(log)
    faulthandler.register(signal.SIGTERM, file=log, chain=True)
    faulthandler.dump_traceback_later(float(limit), exit=True, file=log)
    try:
        importlib.import_module("mpi4py.MPI")
        found = importlib.import_module(module)
    except unittest.SkipTest as reason:
        log.write(f"end {module} {json.dumps({'outcome': 'skipped', 'detail': str(reason)})}\n")
        return 0
    except Exception:
        log.write(f"import {json.dumps({'detail': traceback.format_exc()[-3000:]})}\n")
        return 0
    faulthandler.cancel_dump_traceback_later()
    tests = Loader(os.environ.get("LEFT_OUT", "").split()).loadTestsFromModule(found)
    tests.run(Result(log, float(limit)))
    faulthandler.dump_traceback_later(float(limit), exit=True, file=log)  # for the end of the process
    log.write("done\n")
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
