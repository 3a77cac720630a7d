/*
 * The constants of the water model: for one molecule the force constants of Bartlett, Shavitt and Purvis, for two
 * molecules the potential of Matsuoka, Clementi and Yoshimine (MCY). Lengths in Angstrom, masses in atomic units.
 */
#ifndef VIAKIT_KERNELS_WATER_MODEL_H
#define VIAKIT_KERNELS_WATER_MODEL_H

/* One molecule at rest: the length of its bonds, and the angle between them in radians. */
#define R_OH 0.9572
#define THETA 1.824218
#define MASS_O 15.99945
#define MASS_H 1.007825

/* The fourth site, M, lies at CM of the way from the oxygen to the midpoint of the hydrogens. Its position is C1 times
 * the oxygen's plus C2 times each hydrogen's. Its forces are distributed in the same shares. */
#define CM 0.45682590
#define C1 (1.0 - CM)
#define C2 (CM / 2.0)

/* The energy of a stretched and bent molecule is a polynomial in d1, d2 and t. d1 and d2 are the lengths of the bonds
 * less R_OH; t is the angle less THETA, times R_OH. Indices name the variables: 1 and 2 the bonds, 3 the angle. */
#define FC11 0.512596
#define FC33 0.048098
#define FC12 (-0.005823)
#define FC13 0.016452
#define FC111 (-0.57191)
#define FC333 (-0.007636)
#define FC112 (-0.001867)
#define FC113 (-0.002047)
#define FC123 (-0.03083)
#define FC133 (-0.0094245)
#define FC1111 0.8431
#define FC3333 (-0.00193)
#define FC1112 (-0.0030)
#define FC1122 0.0036
#define FC1113 (-0.012)
#define FC1123 0.0060
#define FC1133 (-0.0048)
#define FC1233 0.0211
#define FC1333 0.006263

/* Two molecules: the square of a hydrogen's charge (M has twice its charge, and negative), and four exponentials A
 * exp(-B r): 1 between oxygens, 2 between hydrogens, 3 less 4 between an oxygen and a hydrogen. */
#define QQ 0.07152158
#define A1 455.313100
#define B1 5.15271070
#define A2 0.27879839
#define B2 2.76084370
#define A3 0.60895706
#define B3 2.96189550
#define A4 0.11447336
#define B4 2.23326410

#endif
