"""Numbers in messages: one byte, two bytes."""

from __future__ import annotations

import numpy as np
import pytest

from viakit import via
from viakit.base.words import counted
from viakit.launch.runner import Options


def test_counted():
    assert [counted(n, "rank") for n in (0, 1, 2)] == ["0 ranks", "1 rank", "2 ranks"]


def test_one_of_each():
    with via.Nic("loop") as nic, nic.register(np.zeros(1, np.uint8)) as region:
        assert " of 1 byte" in repr(region)
        assert "1 bytes" not in repr(region)
    with pytest.raises(ValueError, match="2 hosts for 1 rank;"):
        Options(ranks=1, hosts=2).check()


def test_errors_of_the_engine():
    from viakit.mpi import MPI

    one = np.zeros(1, np.uint8)
    with pytest.raises(MPI.Exception, match=r"1 element of 1 byte at byte 1 does not fit into a buffer of 1 byte$"):
        MPI.COMM_SELF.Send([one, 1, 1, MPI.BYTE], 0)
