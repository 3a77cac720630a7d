/*
 * Water: all work whose time grows with the number of molecules; sums over pairs are in water_lanes.c.
 *
 * A step is predict, place, intra and pair_forces (in any order), fold, correct, wrap. apps/water.py makes a program of
 * them, and apps/water_numpy.py has the same in NumPy.
 *
 *     state[7][9][n]    row k: derivative k of x, times h^k / k!, by atom, direction and molecule
 *     sites[n][12]      H O H M, three coordinates each. forces has the same form.
 *
 * Rows of a state have all molecules side by side, so loops along them read memory in order. Sites are by molecule,
 * because the sums over pairs gather whole molecules.
 *
 * No state is kept here. Every function may run in any thread, on arrays that no other thread changes. Contracts and
 * units are in kernels.h and water_model.h: Angstrom, atomic units of mass, and the energy that follows from the
 * constants.
 */
#include <math.h>

#include "kernels.h"
#include "water_lanes.h"
#include "water_model.h"

#define ORDERS 7     /* x and six derivatives: Gear's method of order 6 */
#define COMPONENTS 9 /* of a state: three atoms, three directions */
#define SITES 12     /* doubles per molecule in sites and forces */

/* Molecules form a ring. Each meets the half of the others that follow it, so that every pair is computed once. */
size_t kernels_water_partners(size_t i, size_t n)
{
    if (n % 2 == 1) {
        return n / 2;
    }
    /* One molecule is as far ahead as behind. For a molecule in the first half with an even number, the pair is its
     * own; with an odd number it is the other molecule's. All ranks thus have about the same number of pairs. */
    size_t half = n / 2;
    int is_own = i < half ? i % 2 == 0 : (i - half) % 2 == 1;
    return n == 0 ? 0 : half - !is_own;
}

/* Taylor's series, by Pascal's triangle, in place. Rows of `state` hold x and its derivatives times h^k / k!. So each
 * becomes the sum of itself and those behind it, weighted by binomial coefficients. In ascending order of k the rows
 * behind are still the old ones. The last row has none behind it, and stays. */
void kernels_water_predict(double *state, size_t n)
{
    /* Pascal's triangle: binomial[k][m] is m over k. */
    static const double binomial[ORDERS][ORDERS] = {
        {1, 1, 1, 1, 1, 1, 1},  {0, 1, 2, 3, 4, 5, 6}, {0, 0, 1, 3, 6, 10, 15}, {0, 0, 0, 1, 4, 10, 20},
        {0, 0, 0, 0, 1, 5, 15}, {0, 0, 0, 0, 0, 1, 6}, {0, 0, 0, 0, 0, 0, 1},
    };
    size_t length = COMPONENTS * n;
    for (size_t i = 0; i < length; i++) {
        for (int k = 0; k < ORDERS - 1; k++) {
            double sum = state[(size_t)k * length + i];
            for (int m = k + 1; m < ORDERS; m++) {
                sum += binomial[k][m] * state[(size_t)m * length + i];
            }
            state[(size_t)k * length + i] = sum;
        }
    }
}

/* By component of a state: hydrogen, oxygen, hydrogen, three directions each. */
static double mass_of(size_t component)
{
    return component / 3 == 1 ? MASS_O : MASS_H;
}

/* The difference between the acceleration that the forces give and the predicted one corrects each row, by a share of
 * its own. */
void kernels_water_correct(double *state, size_t n, const double *forces, double h)
{
    /* Gear's coefficients for an equation of second order and a predictor of order 6. */
    static const double share[ORDERS] = {863.0 / 6048, 665.0 / 1008, 1.0, 25.0 / 36, 35.0 / 144, 1.0 / 24, 1.0 / 360};
    size_t length = COMPONENTS * n;
    for (size_t component = 0; component < COMPONENTS; component++) {
        double scale = 0.5 * h * h / mass_of(component); /* from a force to x'' h^2 / 2, the quantity in row 2 */
        double *row = state + component * n;
        for (size_t i = 0; i < n; i++) {
            double difference = forces[i * SITES + component] * scale - row[2 * length + i];
            for (size_t k = 0; k < ORDERS; k++) {
                row[k * length + i] += share[k] * difference;
            }
        }
    }
}

/* The positions of the atoms, and of M, which lies between the oxygen and the midpoint of the hydrogens and carries the
 * negative charge. */
void kernels_water_place(const double *state, size_t n, double *sites)
{
    for (size_t i = 0; i < n; i++) {
        double *site = sites + i * SITES;
        for (size_t component = 0; component < COMPONENTS; component++) {
            site[component] = state[component * n + i];
        }
        for (int d = 0; d < 3; d++) {
            site[9 + d] = C1 * site[3 + d] + C2 * (site[d] + site[6 + d]);
        }
    }
}

/* The derivative of the energy with respect to d, the elongation of one bond. The other bond is elongated by e. */
static double stretch(double d, double e, double t)
{
    double second = FC11 * d + FC12 * e + FC13 * t;
    double third = 3 * FC111 * d * d + FC112 * (2 * d + e) * e + (2 * FC113 * d + FC123 * e + FC133 * t) * t;
    double fourth =
        4 * FC1111 * d * d * d + FC1112 * (3 * d * d + e * e) * e + 2 * FC1122 * d * e * e +
        (3 * FC1113 * d * d + FC1123 * (2 * d + e) * e + (2 * FC1133 * d + FC1233 * e) * t + FC1333 * t * t) * t;
    return second + third / R_OH + fourth / (R_OH * R_OH);
}

/* The derivative with respect to t. s, p, q, c: sum, product, sum of squares and of cubes of the two bonds' d. */
static double bend(double s, double p, double q, double c, double t)
{
    double second = FC33 * t + FC13 * s;
    double third = 3 * FC333 * t * t + FC113 * q + FC123 * p + 2 * FC133 * s * t;
    double fourth = 4 * FC3333 * t * t * t + FC1113 * c + FC1123 * s * p + 2 * (FC1133 * q + FC1233 * p) * t +
                    3 * FC1333 * s * t * t;
    return second + third / R_OH + fourth / (R_OH * R_OH);
}

/* The energy, whose derivatives are stretch() and bend(); see water_model.h for the source. */
static double energy_of(double d1, double d2, double t)
{
    double s = d1 + d2, p = d1 * d2, q = d1 * d1 + d2 * d2, c = d1 * d1 * d1 + d2 * d2 * d2;
    double second = FC11 / 2 * q + FC33 / 2 * t * t + FC12 * p + FC13 * s * t;
    double third = FC111 * c + FC333 * t * t * t + FC112 * s * p + FC113 * q * t + FC123 * p * t + FC133 * s * t * t;
    double fourth = FC1111 * (d1 * d1 * d1 * d1 + d2 * d2 * d2 * d2) + FC3333 * t * t * t * t + FC1112 * q * p +
                    FC1122 * p * p + FC1113 * c * t + FC1123 * s * p * t + FC1133 * q * t * t + FC1233 * p * t * t +
                    FC1333 * s * t * t * t;
    return second + third / R_OH + fourth / (R_OH * R_OH);
}

/* Each molecule by itself: two bonds and the angle. forces and virial may be NULL; returns the energy. */
double kernels_water_intra(const double *sites, size_t n, double *forces, double *virial)
{
    double energy = 0.0, work = 0.0;
    for (size_t i = 0; i < n; i++) {
        const double *h1 = sites + i * SITES, *o = h1 + 3, *h2 = h1 + 6;
        double e1[3], e2[3];
        for (int d = 0; d < 3; d++) {
            e1[d] = o[d] - h1[d];
            e2[d] = o[d] - h2[d];
        }
        /* Lengths of the bonds, and the angle between them. */
        double r1 = sqrt(e1[0] * e1[0] + e1[1] * e1[1] + e1[2] * e1[2]);
        double r2 = sqrt(e2[0] * e2[0] + e2[1] * e2[1] + e2[2] * e2[2]);
        double cosine = (e1[0] * e2[0] + e1[1] * e2[1] + e1[2] * e2[2]) / (r1 * r2);
        double d1 = r1 - R_OH, d2 = r2 - R_OH, t = (acos(cosine) - THETA) * R_OH;
        energy += energy_of(d1, d2, t);
        if (!forces) {
            continue;
        }
        /* A bond that is too long pulls its hydrogen along it, towards the oxygen. An angle that is too wide pulls it
         * across, by d theta / d x = (u2 - u1 cos) / (r1 sin). Here u1 and u2 are the directions of the bonds. */
        /* The sine is not 0: the angle stays near THETA, 104.5 degrees. */
        double across = bend(d1 + d2, d1 * d2, d1 * d1 + d2 * d2, d1 * d1 * d1 + d2 * d2 * d2, t) * R_OH /
                        sqrt(1.0 - cosine * cosine);
        double along1 = stretch(d1, d2, t), along2 = stretch(d2, d1, t);
        double *force = forces + i * SITES;
        for (int d = 0; d < 3; d++) {
            double u1 = e1[d] / r1, u2 = e2[d] / r2;
            double f1 = along1 * u1 + across / r1 * (u1 * cosine - u2);
            double f2 = along2 * u2 + across / r2 * (u2 * cosine - u1);
            force[d] += f1;
            force[3 + d] -= f1 + f2;
            force[6 + d] += f2;
            work -= e1[d] * f1 + e2[d] * f2; /* the sum of x f of the three atoms, whose forces cancel */
        }
    }
    if (virial) {
        *virial += work;
    }
    return energy;
}

/* KERNELS_PICK chooses the version for this processor's vector instructions (lanes.h). */
void kernels_water_pair_forces(const struct kernels_water_pairs *pairs, const double *sites, double *scratch,
                               double *forces, struct kernels_water_sums *sums)
{
    KERNELS_PICK(water_lanes)->pair_forces(pairs, sites, scratch, forces, sums);
}

/* As pair_forces. Energies are needed in few steps only, so they have a sum of their own. */
void kernels_water_pair_energies(const struct kernels_water_pairs *pairs, const double *sites, double *scratch,
                                 struct kernels_water_sums *sums)
{
    KERNELS_PICK(water_lanes)->pair_energies(pairs, sites, scratch, sums);
}

/* M has no mass. The forces on it go to the three atoms in the shares that determine its position. */
void kernels_water_fold(double *forces, size_t n)
{
    for (size_t i = 0; i < n; i++) {
        double *force = forces + i * SITES;
        for (int d = 0; d < 3; d++) {
            force[d] += C2 * force[9 + d];
            force[3 + d] += C1 * force[9 + d];
            force[6 + d] += C2 * force[9 + d];
            force[9 + d] = 0.0;
        }
    }
}

/* Move whole molecules, by their oxygen, so that bonds never cross the box. */
void kernels_water_wrap(double *state, size_t n, double box)
{
    for (size_t d = 0; d < 3; d++) {
        for (size_t i = 0; i < n; i++) {
            double oxygen = state[(3 + d) * n + i];
            /* One edge suffices: a molecule moves a small part of it in a step. */
            double shift = oxygen > box ? -box : oxygen < 0.0 ? box : 0.0;
            for (size_t atom = 0; atom < 3; atom++) {
                state[(3 * atom + d) * n + i] += shift;
            }
        }
    }
}

/* The sum of m (v h)^2, twice the kinetic energy times h^2: row 1 of `state` is x' h. */
double kernels_water_kinetic(const double *state, size_t n)
{
    double sum = 0.0;
    for (size_t component = 0; component < COMPONENTS; component++) {
        const double *velocity = state + (COMPONENTS + component) * n;
        double squares = 0.0;
        for (size_t i = 0; i < n; i++) {
            squares += velocity[i] * velocity[i];
        }
        sum += mass_of(component) * squares;
    }
    return sum;
}
