"""Layout of derived datatypes: their runs, bounds and bases."""

import numpy as np
import pytest

from viakit.comm import layout
from viakit.mpi import MPI


def bytes_of(datatype, count=1):
    """Offsets of the data bytes of some elements, found by unpacking numbers into memory."""
    nbytes = (count - 1) * datatype.extent + datatype.true_ub
    packed = np.arange(1, count * datatype.size + 1, dtype="i4").astype("u1")
    there = np.zeros(nbytes, "u1")
    assert datatype.Unpack(packed, 0, there, MPI.COMM_SELF) == packed.size
    back = np.zeros(packed.size, "u1")
    assert datatype.Pack(there, back, 0, MPI.COMM_SELF) == packed.size
    assert (back == packed).all()
    return np.flatnonzero(there).tolist()


def test_runs_are_merged_and_counted():
    assert layout.merged([(0, 4), (4, 4), (16, 0), (9, 1), (10, 2)]).tolist() == [[0, 8], [9, 3]]
    assert layout.merged([]).shape == (0, 2)
    assert layout.merged([(4, 4), (0, 4)]).tolist() == [[4, 4], [0, 4]]
    assert layout.byte_index(np.array([[4, 2], [0, 3]])).tolist() == [4, 5, 0, 1, 2]
    for wrong in ([1.5], [1, "x"], np.ones(2)):
        with pytest.raises(TypeError, match="integer"):
            layout.integers(wrong)


def test_derived_datatypes_cover_the_bytes_that_their_arguments_name():
    odd = MPI.BYTE.Create_hindexed([1, 2], [0, 3])  # bytes 0, 3 and 4
    assert bytes_of(odd) == [0, 3, 4]
    assert bytes_of(odd.Create_contiguous(2)) == [0, 3, 4, 5, 8, 9]
    assert bytes_of(odd.Create_hvector(2, 2, 20)) == [x + y for y in (0, 5, 20, 25) for x in (0, 3, 4)]
    assert bytes_of(odd.Create_indexed([2, 0, 1], [0, 9, 3])) == [x + 5 * y for y in (0, 1, 3) for x in (0, 3, 4)]
    assert bytes_of(MPI.SHORT.Create_vector(3, 1, 2)) == [0, 1, 4, 5, 8, 9]
    mixed = MPI.Datatype.Create_struct([2, 1], [0, 16], [MPI.SHORT, odd])
    assert bytes_of(mixed, 1) == [0, 1, 2, 3, 16, 19, 20]
    part = MPI.INT.Create_subarray([4, 3, 5], [2, 1, 3], [1, 2, 1])
    cells = np.arange(60).reshape(4, 3, 5)[1:3, 2:3, 1:4].ravel()
    assert part.Get_extent() == (0, 240)
    assert bytes_of(part)[::4] == (4 * cells).tolist()
    for made in (MPI.INT.Create_contiguous(0), MPI.INT.Create_indexed([0, 0], [1, 2])):
        assert (made.size, made.extent) == (0, 0)


@pytest.mark.parametrize("order", [MPI.ORDER_C, MPI.ORDER_FORTRAN])
@pytest.mark.parametrize("how", [MPI.DISTRIBUTE_BLOCK, MPI.DISTRIBUTE_CYCLIC])
def test_the_parts_of_a_distributed_array_are_the_whole(how, order):
    shape, grid = (7, 6), (2, 3)
    found = []
    for rank in range(6):
        part = MPI.SHORT.Create_darray(6, rank, shape, [how] * 2, [MPI.DISTRIBUTE_DFLT_DARG] * 2, grid, order)
        assert part.extent == 84
        found += bytes_of(part)
    assert sorted(found) == list(range(84))


def test_a_datatype_of_very_many_runs():
    count = 200_000
    column = MPI.DOUBLE.Create_vector(count, 1, 3)
    data = np.arange(3.0 * count)
    packed = np.zeros(count)
    column.Pack(data, packed, 0, MPI.COMM_SELF)
    assert (packed == data[::3]).all()
    assert column.Dup().Create_resized(0, 24).true_extent == 8 * (3 * count - 2)


def test_bounds_of_a_structure_are_padded_to_its_alignment():
    made = MPI.Datatype.Create_struct([1, 1], [0, 8], [MPI.DOUBLE, MPI.CHAR])
    assert made.extent == np.dtype("d,S1", align=True).itemsize == 16
    assert MPI.Datatype.Create_struct([1, 1], [0, 16], [made, MPI.CHAR]).extent == 24
    fixed = MPI.DOUBLE.Create_resized(0, 8)  # bounds that the program has set are kept
    assert MPI.Datatype.Create_struct([1, 1], [0, 8], [fixed, MPI.CHAR]).extent == 9


def test_the_base_of_a_datatype_may_be_freed():
    base = MPI.INT.Create_contiguous(3)
    made = base.Create_vector(2, 1, 2)
    base.Free()
    inner, kind, arguments = made.decode()
    assert (kind, arguments["count"], inner.size) == ("VECTOR", 2, 12)
    inner.Free()
    assert made.decode()[0].combiner == MPI.COMBINER_CONTIGUOUS
