"""Jobs on a described machine: its numbers in a file, which the ranks read."""

from __future__ import annotations

import contextlib
import tempfile
from collections.abc import Iterator

from viakit import machines

__all__ = ["on_machine"]


@contextlib.contextmanager
def on_machine(name: str | None, computing: float | None = None) -> Iterator[dict[str, str]]:
    """Provide the environment of ranks that run on a machine, in virtual time.

    Parameters
    ----------
    name : str or None
        Name of a machine, or its file; None: no machine, and no variable.
    computing : float, optional
        The machine's time for the computing of one second of this processor, for applications. Default: that of the
        machine's description.

    Yields
    ------
    dict
        The variables VIAKIT_MACHINE, whose file exists until the end of the context, and VIAKIT_COMPUTING.

    Raises
    ------
    MachineError
        If the machine does not exist, or its file has an error; a ValueError.
    """
    if name is None:
        yield {}
        return
    machine = machines.load(name)
    text = machine.text()
    factor = machine.numbers.get("compute.factor", 0.0) if computing is None else computing
    with tempfile.NamedTemporaryFile("w", prefix="viakit-machine-", suffix=".txt") as file:
        file.write(text)
        file.flush()
        yield {"VIAKIT_MACHINE": file.name, "VIAKIT_COMPUTING": repr(factor)}
