"""FT: its kernels against NumPy, published checksums on any number of ranks, and refused arguments."""

from __future__ import annotations

import re

import apps_job
import numpy as np
import pytest

from viakit import _kernels
from viakit.apps import fft, harness

# Small and irregular: no powers of two, a dimension of one, fewer slabs than ranks along either dimension.
PROBLEMS = [
    {"size": "6x10x14", "iterations": 2},
    {"size": "2x9x5", "iterations": 1},
    {"size": "5x1x2", "iterations": 1},
    {"klass": "S", "iterations": 1},
]


def numbers(*shape: int) -> fft.Complex:
    generator = np.random.default_rng(sum(shape))
    return generator.random(shape) + 1j * generator.random(shape)


# ------------------------------------------------------------------------------------------------ kernels


@pytest.mark.parametrize("shape", [(1, 1, 1), (1, 8, 5), (2, 19, 7), (3, 16, 16), (0, 4, 4), (2, 3, 0)])
def test_transpose(kernel_level, shape):
    """Transforms between parts of larger arrays leave the bytes beside them unchanged."""
    planes, rows, columns = shape
    source = numbers(planes + 1, rows + 2, columns + 3)[1:, 1 : rows + 1, 2 : columns + 2]
    around = np.full((planes + 2, columns + 2, rows + 2), -1 + 0j)
    target = around[1:-1, 1:-1, 1:-1]
    _kernels.ft_transpose(source, target)
    assert np.array_equal(target, source.transpose(0, 2, 1))
    target[:] = -1
    assert (around == -1).all()


@pytest.mark.parametrize("shape", [(1, 1), (3, 7), (5, 64), (0, 3)])
def test_scale(kernel_level, shape):
    source, target = numbers(*shape), np.zeros(shape, np.complex128)
    of_row, of_column = np.linspace(1, 2, shape[0]), np.linspace(3, 4, shape[1])
    _kernels.ft_scale(source, target, of_row, of_column)
    assert np.array_equal(target, source * (of_row[:, None] * of_column))


def test_what_the_kernels_refuse():
    a = numbers(2, 4, 6)
    for source, target, text in [
        (a, np.zeros((2, 4, 6), complex), r"of shape \(2, 6, 4\), not \(2, 4, 6\)"),
        (a[0], a, "three dimensions"),
        (a[:, :, ::2], np.zeros((2, 3, 4), complex), "rows of source are to be contiguous"),
        (a[:, ::-1], np.zeros((2, 6, 4), complex), "in rising order"),
        (a[:, :, :4], a[:, :, 2:], "overlap"),
    ]:
        with pytest.raises(ValueError, match=text):
            _kernels.ft_transpose(source, target)
    with pytest.raises(TypeError, match="complex128"):
        _kernels.ft_transpose(a.real, a)
    with pytest.raises(ValueError, match=re.escape("of_row is to be of shape (4), not (3,)")):
        _kernels.ft_scale(a[0], a[1], np.ones(3), np.ones(6))


def test_wave_numbers():
    assert fft.waves(6).tolist() == [0, 1, 4, 9, 4, 1]
    assert fft.waves(5).tolist() == [0, 1, 4, 4, 1]
    assert fft.waves(8, 3, 6).tolist() == [9, 16, 9]


# ------------------------------------------------------------------------------------------------ results


@pytest.mark.parametrize("klass", ["S", "W", "paper"])
def test_serial_program_is_right(klass):
    what = fft.problem(klass)
    checks = fft.verify(what, fft.serial(what))
    assert len(checks) == what.iterations
    assert [str(one) for one in checks if not one.ok] == []


@pytest.mark.parametrize("options", PROBLEMS)
def test_serial_program_agrees_with_numpy(options):
    what = fft.problem(**options)
    assert np.allclose(fft.serial(what).checksums, fft.solve_numpy(what), rtol=1e-12, atol=0)


def checksums(text: str) -> list[complex]:
    """Return the checksums in an outcome's repr."""
    return [complex(word) for word in re.findall(r"\(([^()]*j)\)", text)]


@pytest.mark.parametrize("channel", apps_job.CHANNELS)
def test_any_number_of_ranks_finds_the_same(channel, tmp_path):
    for line in apps_job.run("fft", PROBLEMS, [1, 2, 3, 4], channel, tmp_path):
        what = fft.problem(**line["options"])
        found = checksums(line["outcome"])
        assert len(found) == what.iterations
        assert np.allclose(found, fft.serial(what).checksums, rtol=1e-12, atol=0), line
        assert line["wrong"] == []
        # A block from each rank with slabs of one kind to each with slabs of the other, and a number per iteration.
        ranks = line["ranks"]
        n1, _, n3 = what.shape
        slabs1, slabs3 = ([harness.share(n, one, ranks) for one in range(ranks)] for n in (n1, n3))
        pairs = sum(
            slabs1[one][0] < slabs1[one][1] and slabs3[other][0] < slabs3[other][1]
            for one in range(ranks)
            for other in range(ranks)
            if one != other
        )
        assert line["messages"] == (what.iterations + 1) * pairs + what.iterations * (ranks - 1), line


def test_table_2_of_the_paper(tmp_path):
    """The numbers of messages and kilobytes equal the paper's."""
    (line,) = apps_job.run("fft", [{"klass": "paper"}], [8], "via", tmp_path)
    assert line["wrong"] == []
    assert line["checks"] == 10
    assert line["messages"] == apps_job.paper("3-D FFT", "number of messages")
    assert int(line["nbytes"] / 1024) == apps_job.paper("3-D FFT", "total transfers")


def test_a_wrong_result_is_told():
    what = fft.problem("S", iterations=2)
    outcome = fft.serial(what)
    outcome.checksums[1] *= 1 + 1e-10
    (wrong,) = [one for one in fft.verify(what, outcome) if not one.ok]
    assert wrong.name == "checksum 2"
    assert 0.9e-10 < wrong.error < 1.1e-10
    assert fft.verify(fft.problem(size="8"), outcome) == []  # no published values for comparison


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"klass": "Q"}, "no class 'Q'; there are S, W, A, B, paper"),
        ({"klass": "S", "size": "64"}, "not both"),
        ({"size": "8x8"}, "expected one number, or N1xN2xN3"),
        ({"size": "many"}, "expected one number"),
        ({"size": "8x0x8"}, "1 to 4096 elements"),
        ({"size": "8192"}, "1 to 4096 elements"),
        ({"iterations": 0}, "1 or more, not 0"),
        ({"klass": "S", "iterations": 7}, "class S has 6 iterations, not 7"),
    ],
)
def test_problems_that_make_no_sense(options, words):
    with pytest.raises(ValueError, match=words):
        fft.problem(**options)
