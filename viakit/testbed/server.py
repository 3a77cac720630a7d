"""The user's end of a testbed: starts the supervisor, sends it requests, and raises its refusals.

:mod:`viakit.testbed.host` is the other end.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
from typing import Any

from viakit.testbed import namespaces as _namespaces
from viakit.testbed.call import TestbedError

__all__ = ["NamespaceError", "Supervisor"]

_SEND_DEADLINE_S = 5.0
_START_DEADLINE_S = 60.0  # for Python to start, on a busy machine
_STOP_DEADLINE_S = 8.0
_STILL_WORKS = (
    "Without it, these still work: the links loop and shm, MPI, and tcp, udp and zmq on localhost "
    "(viakit sweep ... --hosts local). `viakit doctor` lists the capabilities of this machine."
)


class NamespaceError(TestbedError, PermissionError):
    """The kernel refused to create a namespace or an interface.

    Attributes
    ----------
    step : str
        The refused step: "user", "map", "net", "host", "veth", "bridge", "tbf" or "relay".
    setting : str
        The setting that causes the refusal, for instance "kernel.apparmor_restrict_unprivileged_userns".
    remedy : str
        What to do about it.
    """

    def __init__(self, step: str, number: int) -> None:
        refusal = _namespaces.explain_refusal(step, number)
        what = _namespaces.STEPS[step]
        super().__init__(
            f"{what} was refused ({os.strerror(number)}): {refusal.why}. Remedy: {refusal.remedy}. {_STILL_WORKS}"
        )
        self.step, self.setting, self.remedy = step, refusal.setting, refusal.remedy
        self.errno = number

    def __str__(self) -> str:
        return str(self.args[0])

    def __reduce__(self) -> tuple[Any, ...]:
        return NamespaceError, (self.step, self.errno)


# The server process is started by this code instead of -m, so that it does not import viakit, and with it NumPy and its
# threads. The code makes viakit's directory a package of another name, in which the relative imports work.
_BOOTSTRAP = """
import sys, types
sys.path[:] = {path!r}
package = types.ModuleType("_viakit_testbed")
package.__path__ = [{here!r}]
sys.modules["_viakit_testbed"] = package
from _viakit_testbed import host
host.main({fd})
"""


class Supervisor:
    """Connection to the supervisor, the server process that holds the namespaces."""

    def __init__(self, plans: list[dict[str, Any]], rest: dict[str, Any]) -> None:
        self.owner = os.getpid()
        self.controls: list[socket.socket] = []
        self.pids: list[int] = []
        self.process: subprocess.Popen[bytes] | None = None
        pair = (socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self.control, far = socket.socketpair(*pair)
        fars = [far]
        try:
            for plan in plans:
                near, far = socket.socketpair(*pair)
                near.settimeout(_SEND_DEADLINE_S)
                self.controls.append(near)
                fars.append(far)
                plan["fd"] = far.fileno()
            code = _BOOTSTRAP.format(path=sys.path, here=os.path.dirname(__file__), fd=fars[0].fileno())
            # The supervisor has its own session: Ctrl-C reaches only this process, which closes the testbed.
            self.process = subprocess.Popen(
                [sys.executable, "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=[far.fileno() for far in fars],
                start_new_session=True,
            )
            for far in fars:
                far.close()
            self.control.settimeout(_START_DEADLINE_S)
            self.pids = self.request({"hosts": plans, **rest})["pids"]
        except BaseException:
            for far in fars:
                far.close()
            self.stop()
            raise

    def request(self, request: dict[str, Any]) -> dict[str, Any]:
        """Send a request and return the reply. Raises TestbedError, or NamespaceError if the kernel refuses."""
        try:
            self.control.send(json.dumps(request).encode())
            message = self.control.recv(1 << 20)
        except ConnectionError:
            message = b""
        except OSError as error:
            raise TestbedError(f"the testbed's server process does not reply ({error}); open a new Testbed") from error
        if not message:
            raise TestbedError(f"the testbed's server process ({sys.executable}) has ended; open a new Testbed")
        reply: dict[str, Any] = json.loads(message)
        if "refused" in reply:
            raise NamespaceError(*reply["refused"])
        if "error" in reply:
            raise TestbedError(f"the testbed's server process failed: {reply['error']}")
        return reply

    def stop(self) -> None:
        """Close the connection and wait until the supervisor and all its descendants have ended."""
        if os.getpid() != self.owner:
            return  # This is a forked child. The testbed belongs to its parent.
        for control in [*self.controls, self.control]:
            try:
                control.shutdown(socket.SHUT_RDWR)  # takes effect even if a forked child holds a copy of the socket
            except OSError:
                pass
            control.close()
        if self.process is not None:
            try:
                self.process.wait(_STOP_DEADLINE_S)
            finally:
                if self.process.poll() is None:  # It hangs, or Ctrl-C was pressed. The kernel kills its descendants.
                    self.process.kill()
                    self.process.wait()
