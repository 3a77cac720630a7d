/*
 * Water's sums over pairs of molecules as plain loops: a loop over the pairs, which evaluates the formulas one after
 * the other. The array sites has 12 doubles per molecule: H1, O, H2 and M, each x, y, z.
 */
#include <math.h>

/* Charges and four exponentials A exp(-B r). A hydrogen has one charge, M minus two; QQ is the square of the charge. */
#define QQ 0.07152158
#define A1 455.313100
#define B1 5.15271070
#define A2 0.27879839
#define B2 2.76084370
#define A3 0.60895706
#define B3 2.96189550
#define A4 0.11447336
#define B4 2.23326410

/* Sites of the one and of the other molecule: nine pairs of charges, the last four of which are hydrogens, then the
 * oxygens, then the pairs of an oxygen and a hydrogen. */
static const int pair_one[14] = {3, 3, 3, 0, 2, 0, 0, 2, 2, 1, 1, 1, 0, 2};
static const int pair_other[14] = {3, 0, 2, 3, 3, 0, 2, 0, 2, 1, 0, 2, 1, 1};

/* Returns the smallest of all images of a difference in a periodic box. */
static inline double nearest(double x, double box, double half)
{
    return x > half ? x - box : x < -half ? x + box : x;
}

/* Computes the differences of pairs [from, to) and their squares. */
static inline void measure(const double *one, const double *other, int from, int to, double box,
                           double difference[14][3], double rs[14])
{
    double half = box / 2;
    for (int k = from; k < to; k++) {
        const double *a = one + 3 * pair_one[k], *b = other + 3 * pair_other[k];
        double x = nearest(a[0] - b[0], box, half);
        double y = nearest(a[1] - b[1], box, half);
        double z = nearest(a[2] - b[2], box, half);
        difference[k][0] = x;
        difference[k][1] = y;
        difference[k][2] = z;
        rs[k] = x * x + y * y + z * z;
    }
}

/* Returns the number of distances between charges, of nine, beyond the cutoff. */
static inline int beyond(const double *rs, double cutoff2)
{
    int count = 0;
    for (int k = 0; k < 9; k++) {
        count += rs[k] > cutoff2;
    }
    return count;
}

/* Returns the end (exclusive) of the partners of molecule i of n: half of the other molecules, numbered on beyond n. */
static long last(long i, long n)
{
    long half = n / 2;
    int mine = n % 2 || (i < half ? i % 2 == 0 : (i - half) % 2 == 1);
    return i + 1 + half - !mine;
}

/* Adds the forces of all pairs of n molecules and returns the virial. sites and forces have n + n / 2 rows; the last
 * n / 2 rows of sites are copies of the first ones. */
double water_plain_forces(const double *sites, long n, double box, double cutoff, double *forces)
{
    double virial = 0.0, cutoff2 = cutoff * cutoff, ref1 = -QQ / (cutoff2 * cutoff);
    for (long i = 0; i < n; i++) {
        for (long j = i + 1; j < last(i, n); j++) {
            double difference[14][3], rs[14], factor[14];
            measure(sites + 12 * i, sites + 12 * j, 0, 9, box, difference, rs);
            int n_beyond = beyond(rs, cutoff2);
            if (n_beyond == 9) {
                continue;
            }
            int n_pairs = n_beyond == 0 ? 14 : 9;
            for (int k = 0; k < 9; k++) {
                double charge = k == 0 ? 4 * QQ : k < 5 ? -2 * QQ : QQ;
                double ref = k == 0 ? 4 * ref1 : k < 5 ? -2 * ref1 : ref1;
                factor[k] = rs[k] <= cutoff2 ? charge / (rs[k] * sqrt(rs[k])) + ref : 0.0;
            }
            if (n_beyond == 0) {
                measure(sites + 12 * i, sites + 12 * j, 9, 14, box, difference, rs);
                for (int k = 5; k < 9; k++) {
                    double r = sqrt(rs[k]);
                    factor[k] += A2 * B2 * exp(-B2 * r) / r;
                }
                double r = sqrt(rs[9]);
                factor[9] = A1 * B1 * exp(-B1 * r) / r;
                for (int k = 10; k < 14; k++) {
                    r = sqrt(rs[k]);
                    factor[k] = (A3 * B3 * exp(-B3 * r) - A4 * B4 * exp(-B4 * r)) / r;
                }
            }
            for (int k = 0; k < n_pairs; k++) {
                virial += factor[k] * rs[k];
                for (int d = 0; d < 3; d++) {
                    double force = factor[k] * difference[k][d];
                    forces[12 * i + 3 * pair_one[k] + d] += force;
                    forces[12 * j + 3 * pair_other[k] + d] -= force;
                }
            }
        }
    }
    return virial;
}

/* Returns the energy of all pairs, and that of the reaction field in *field. */
double water_plain_energies(const double *sites, long n, double box, double cutoff, double *field)
{
    double energy = 0.0, answer = 0.0, cutoff2 = cutoff * cutoff, ref1 = -QQ / (cutoff2 * cutoff);
    for (long i = 0; i < n; i++) {
        for (long j = i + 1; j < last(i, n); j++) {
            double difference[14][3], rs[14], r[14];
            measure(sites + 12 * i, sites + 12 * j, 0, 9, box, difference, rs);
            int n_beyond = beyond(rs, cutoff2);
            if (n_beyond == 9) {
                continue;
            }
            for (int k = 0; k < 9; k++) {
                rs[k] = rs[k] > cutoff2 ? cutoff2 : rs[k];
                r[k] = sqrt(rs[k]);
            }
            energy += 4 * QQ / r[0] - 2 * QQ * (1 / r[1] + 1 / r[2] + 1 / r[3] + 1 / r[4]) +
                      QQ * (1 / r[5] + 1 / r[6] + 1 / r[7] + 1 / r[8]);
            answer -= 2 * ref1 * rs[0] + ref1 * (0.5 * (rs[5] + rs[6] + rs[7] + rs[8]) - rs[1] - rs[2] - rs[3] - rs[4]);
            if (n_beyond == 0) {
                measure(sites + 12 * i, sites + 12 * j, 9, 14, box, difference, rs);
                for (int k = 5; k < 9; k++) {
                    energy += A2 * exp(-B2 * r[k]);
                }
                energy += A1 * exp(-B1 * sqrt(rs[9]));
                for (int k = 10; k < 14; k++) {
                    double distance = sqrt(rs[k]);
                    energy += A3 * exp(-B3 * distance) - A4 * exp(-B4 * distance);
                }
            }
        }
    }
    *field = answer;
    return energy;
}
