"""The kernels of Water in NumPy: a readable reference for those in C (csrc/kernels/water.c and water_lanes.c).

Each function has the name, the arguments and the results of its counterpart in C. Lengths are in Angstrom, times in
steps of the integration, masses in atomic units. Energies are in units of 1.66e-10 erg until :mod:`viakit.apps.water`
scales them.

A molecule has three atoms, in the order H1, O, H2, and a fourth site M near the oxygen, on the line that halves the
angle. M has the charge of the oxygen. Arrays:

``state``   (7, 9, n): row k is the k-th derivative of the positions, times h^k/k!; component 3 * atom + direction
``sites``   (m, 12): per molecule H1, O, H2, M, each x, y, z
``forces``  (m, 12): on these sites; :func:`fold` distributes M's force to the atoms

The model within a molecule is that of Bartlett, Shavitt and Purvis (the force constants of its vibrations). The model
of two molecules is that of Matsuoka, Clementi and Yoshimine (MCY).
"""

from __future__ import annotations

import math

import numpy as np

__all__ = [
    "BINOMIALS",
    "CORRECTIONS",
    "MASSES",
    "correct",
    "fold",
    "intra",
    "kinetic",
    "pair_energies",
    "pair_forces",
    "partners",
    "place",
    "predict",
    "wrap",
]

ORDERS = 7
R_OH, THETA = 0.9572, 1.824218  # length of the bonds in Angstrom and angle between them in radians, in equilibrium
M_O, M_H = 15.99945, 1.007825
MASSES = np.repeat([M_H, M_O, M_H], 3)  # per component

# Position of M: the fraction CM of the way from the oxygen to the middle between the hydrogens.
CM = 0.45682590
C1, C2 = 1.0 - CM, CM / 2.0

# Energy of a deformed molecule, a polynomial of fourth degree. Its variables are the elongations d1 and d2 of the bonds
# beyond R_OH, and t, the change of the angle from THETA times R_OH. Indices name the variables (1: d1, 2: d2, 3: t).
FC11, FC33, FC12, FC13 = 0.512596, 0.048098, -0.005823, 0.016452
FC111, FC333, FC112, FC113, FC123, FC133 = -0.57191, -0.007636, -0.001867, -0.002047, -0.03083, -0.0094245
FC1111, FC3333, FC1112, FC1122, FC1113 = 0.8431, -0.00193, -0.0030, 0.0036, -0.012
FC1123, FC1133, FC1233, FC1333 = 0.0060, -0.0048, 0.0211, 0.006263

# Energy of two molecules: charges, and four exponentials A exp(-B r) (1: O-O, 2: H-H, 3 and 4: O-H).
QQ = 0.07152158
A1, B1, A2, B2 = 455.313100, 5.15271070, 0.27879839, 2.76084370
A3, B3, A4, B4 = 0.60895706, 2.96189550, 0.11447336, 2.23326410

# Gear's predictor of order 6 (Pascal's triangle), and the part of the difference that its corrector adds by derivative.
BINOMIALS = np.array([[math.comb(m, k) for m in range(ORDERS)] for k in range(ORDERS)], dtype=float)
CORRECTIONS = np.array([863 / 6048, 665 / 1008, 1.0, 25 / 36, 35 / 144, 1 / 24, 1 / 360])

# The nine pairs of charged sites and the five others, as (site of one molecule, site of the other). H1, O, H2, M have
# the numbers 0 to 3.
H1, OX, H2, M = range(4)
PAIRS = [(M, M), (M, H1), (M, H2), (H1, M), (H2, M), (H1, H1), (H1, H2), (H2, H1), (H2, H2),
         (OX, OX), (OX, H1), (OX, H2), (H1, OX), (H2, OX)]  # fmt: skip
MM, MH, HH, OO, OH = slice(0, 1), slice(1, 5), slice(5, 9), slice(9, 10), slice(10, 14)


def predict(state: np.ndarray) -> None:
    """Predict the next step: a Taylor series of each derivative from all higher ones."""
    for k in range(ORDERS - 1):
        for m in range(k + 1, ORDERS):
            state[k] += BINOMIALS[k, m] * state[m]


def correct(state: np.ndarray, forces: np.ndarray, h: float) -> None:
    """Correct the accelerations to those of *forces* (n, 12, folded), and each derivative accordingly."""
    n = state.shape[2]
    difference = forces[:n, :9].T * (0.5 * h * h / MASSES)[:, None] - state[2]
    for k in range(ORDERS):
        state[k] += CORRECTIONS[k] * difference


def place(state: np.ndarray, sites: np.ndarray) -> None:
    """Write the positions of *state*, and those of M, to the first n rows of *sites*."""
    n = state.shape[2]
    sites[:n, :9] = state[0].T
    sites[:n, 9:] = C1 * sites[:n, 3:6] + C2 * (sites[:n, 0:3] + sites[:n, 6:9])


def intra(sites: np.ndarray, n: int, forces: np.ndarray | None = None) -> tuple[float, float]:
    """Return energy and virial of the bonds of the first *n* molecules. Add their forces to *forces* if given."""
    if n == 0:
        return 0.0, 0.0
    h1, o, h2 = (sites[:n, 3 * atom : 3 * atom + 3] for atom in range(3))
    e1, e2 = o - h1, o - h2
    r1, r2 = np.sqrt((e1 * e1).sum(1)), np.sqrt((e2 * e2).sum(1))
    u1, u2 = e1 / r1[:, None], e2 / r2[:, None]
    cos = (u1 * u2).sum(1)
    d1, d2, t = r1 - R_OH, r2 - R_OH, (np.arccos(cos) - THETA) * R_OH
    s, p, q, c = d1 + d2, d1 * d2, d1 * d1 + d2 * d2, d1**3 + d2**3
    energy = (
        FC11 / 2 * q + FC33 / 2 * t**2 + FC12 * p + FC13 * s * t
        + (FC111 * c + FC333 * t**3 + FC112 * s * p + FC113 * q * t + FC123 * p * t + FC133 * s * t**2) / R_OH
        + (FC1111 * (d1**4 + d2**4) + FC3333 * t**4 + FC1112 * q * p + FC1122 * p**2 + FC1113 * c * t
           + FC1123 * s * p * t + FC1133 * q * t**2 + FC1233 * p * t**2 + FC1333 * s * t**3) / R_OH**2
    )  # fmt: skip
    if forces is None:
        return float(energy.sum()), 0.0

    def stretch(d: np.ndarray, e: np.ndarray) -> np.ndarray:
        """Return the derivative of the energy by the length of the bond with elongation d; e is the other one's."""
        return (
            FC11 * d + FC12 * e + FC13 * t
            + (3 * FC111 * d**2 + FC112 * (2 * d + e) * e + (2 * FC113 * d + FC123 * e + FC133 * t) * t) / R_OH
            + (4 * FC1111 * d**3 + FC1112 * (3 * d**2 + e**2) * e + 2 * FC1122 * d * e**2
               + (3 * FC1113 * d**2 + FC1123 * (2 * d + e) * e + (2 * FC1133 * d + FC1233 * e) * t
                  + FC1333 * t**2) * t) / R_OH**2
        )  # fmt: skip

    bend = (
        FC33 * t + FC13 * s
        + (3 * FC333 * t**2 + FC113 * q + FC123 * p + 2 * FC133 * s * t) / R_OH
        + (4 * FC3333 * t**3 + FC1113 * c + FC1123 * s * p + 2 * (FC1133 * q + FC1233 * p) * t
           + 3 * FC1333 * s * t**2) / R_OH**2
    )  # fmt: skip
    turn = bend * R_OH / np.sqrt(1 - cos * cos)
    f1 = stretch(d1, d2)[:, None] * u1 + (turn / r1)[:, None] * (u1 * cos[:, None] - u2)
    f2 = stretch(d2, d1)[:, None] * u2 + (turn / r2)[:, None] * (u2 * cos[:, None] - u1)
    of_atoms = np.hstack([f1, -(f1 + f2), f2])
    forces[:n, :9] += of_atoms
    return float(energy.sum()), float((sites[:n, :9] * of_atoms).sum())


def partners(i: int, n: int) -> int:
    """Return the number of molecules after *i* of *n* with which *i* computes the pair.

    This is half of the others, and the first molecule follows the last. If n is even, one molecule is as far ahead as
    behind. The one of the two in the first half computes this pair if its number is even, else the other.
    """
    if n % 2:
        return n // 2
    half = n // 2
    mine = i % 2 == 0 if i < half else (i - half) % 2 == 1
    return half if mine else half - 1


def _squares(sites: np.ndarray, i: int, many: int, box: float) -> tuple[np.ndarray, np.ndarray]:
    """Return the nearest differences (14, many, 3) of the sites of i and of the *many* after it, and their squares."""
    one = sites[i].reshape(4, 1, 3)
    others = sites[i + 1 : i + 1 + many].reshape(many, 4, 3)
    difference = np.stack([one[a] - others[:, b] for a, b in PAIRS])
    difference -= np.where(np.abs(difference) > box / 2, np.copysign(box, difference), 0.0)
    return difference, (difference * difference).sum(2)


def pair_forces(
    sites: np.ndarray, first: int, own: int, n: int, box: float, cutoff: float, forces: np.ndarray
) -> tuple[float, int]:
    """Add the forces between molecules to *forces*. Return the virial and the number of pairs within the cutoff.

    *sites* contains molecule *first* and those after it. The pairs are those of the first *own* with their partners.
    """
    virial, whole = 0.0, 0
    ref1 = -QQ / cutoff**3
    forces_by_site = forces.reshape(-1, 4, 3)
    for i in range(own):
        many = partners(first + i, n)
        difference, rs = _squares(sites, i, many, box)
        r = np.sqrt(rs)
        factor = np.empty_like(r)
        factor[MM] = np.where(rs[MM] < cutoff**2, 4 * QQ / r[MM] ** 3 + 4 * ref1, 0.0)
        factor[MH] = np.where(rs[MH] < cutoff**2, -2 * QQ / r[MH] ** 3 - 2 * ref1, 0.0)
        factor[HH] = np.where(rs[HH] <= cutoff**2, QQ / r[HH] ** 3 + ref1, 0.0)
        inside = (rs[:9] <= cutoff**2).all(0)
        factor[HH] += inside * A2 * B2 * np.exp(-B2 * r[HH]) / r[HH]
        factor[OO] = inside * A1 * B1 * np.exp(-B1 * r[OO]) / r[OO]
        factor[OH] = inside * (A3 * B3 * np.exp(-B3 * r[OH]) - A4 * B4 * np.exp(-B4 * r[OH])) / r[OH]
        virial += (factor * rs).sum()
        whole += int(inside.sum())
        force = factor[:, :, None] * difference
        for k, (a, b) in enumerate(PAIRS):
            forces_by_site[i, a] += force[k].sum(0)
            forces_by_site[i + 1 : i + 1 + many, b] -= force[k]
    return float(virial), whole


def pair_energies(
    sites: np.ndarray, first: int, own: int, n: int, box: float, cutoff: float
) -> tuple[float, float, int]:
    """Return the energy of all pairs, that of the reaction field, and the number of pairs wholly within *cutoff*."""
    energy, field, whole = 0.0, 0.0, 0
    ref1 = -QQ / cutoff**3
    for i in range(own):
        _, rs = _squares(sites, i, partners(first + i, n), box)
        inside = (rs[:9] <= cutoff**2).all(0)
        some = (rs[:9] <= cutoff**2).any(0)
        rs[:9] = np.minimum(rs[:9], cutoff**2)
        r = np.sqrt(rs)
        charges = 4 * QQ / r[MM].sum(0) - 2 * QQ * (1 / r[MH]).sum(0) + QQ * (1 / r[HH]).sum(0)
        energy += (some * charges).sum()
        field -= (some * (2 * ref1 * rs[MM].sum(0) + ref1 * (0.5 * rs[HH].sum(0) - rs[MH].sum(0)))).sum()
        short = A1 * np.exp(-B1 * r[OO]).sum(0) + A2 * np.exp(-B2 * r[HH]).sum(0)
        short += (A3 * np.exp(-B3 * r[OH]) - A4 * np.exp(-B4 * r[OH])).sum(0)
        energy += (inside * short).sum()
        whole += int(inside.sum())
    return float(energy), float(field), whole


def fold(forces: np.ndarray) -> None:
    """Distribute the forces on M to the atoms that determine its position: C1 to the oxygen, C2 to each hydrogen."""
    forces[:, 0:3] += C2 * forces[:, 9:12]
    forces[:, 3:6] += C1 * forces[:, 9:12]
    forces[:, 6:9] += C2 * forces[:, 9:12]
    forces[:, 9:12] = 0.0


def wrap(state: np.ndarray, box: float) -> None:
    """Move molecules whose oxygen has left the box to the other side, as a whole."""
    for direction in range(3):
        oxygen = state[0, 3 + direction]
        shift = np.where(oxygen > box, -box, np.where(oxygen < 0, box, 0.0))
        state[0, direction::3] += shift


def kinetic(state: np.ndarray) -> float:
    """Return the sum of mass times velocity squared, with velocities per step: twice the kinetic energy."""
    return float((MASSES[:, None] * state[1] ** 2).sum())
