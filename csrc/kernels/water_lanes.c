/*
 * Water's sums over pairs of molecules, LANES_F64 pairs at a time.
 *
 * For each molecule, "one", the distances between its M and those of its partners are looked at first, which is cheap:
 * three differences instead of forty-two. No site is further from its M than some `reach`; so with a cutoff c
 *
 *     distance of the Ms   < c - 2 reach             all sites are within the cutoff: list `inside`
 *                          < c + 2 reach             who knows: list `edge`
 *                          above                     none is: the pair is done
 *
 * Whenever a list has LANES_F64 entries they are computed, "the others", a lane each. Inside, nothing needs to be compared, and
 * the nearest image of the others' M has the nearest images of all their sites: they are moved there once. At the edge
 * each difference looks for its own nearest image, each distance for the cutoff, and a mask says which lanes count.
 *
 * Contracts: kernels.h. Compiled once per level of vector instructions.
 */
#include <math.h>

#include "water_lanes.h"
#include "water_model.h"

#define SITES 12         /* doubles per molecule */
#define CHUNK 64         /* partners that are looked at before lists are emptied; a multiple of LANES_F64 */
#define NEAREST 0x1.8p52 /* added and taken off again, it leaves the nearest whole number */

enum site { H1, O, H2, M };

/* What does not change during a sum. */
struct field {
    double box, per_box; /* the edge, and 1 / edge */
    double cutoff2;      /* the cutoff's square */
    double ref1;         /* of the reaction field, per QQ: -QQ / cutoff^3 */
    double inside2;      /* squares of distances between Ms: below this all sites are within the cutoff, */
    double edge2;        /* above this none is */
};

/* One molecule in all lanes and another one in each, with what the pair adds. */
struct meeting {
    vf64 one[SITES], other[SITES];
    vf64 on_other[SITES]; /* forces */
    vi64 live;            /* lanes that count */
    vi64 whole;           /* lanes in which all nine distances between charges are within the cutoff */
};

struct totals {
    vf64 on_one[SITES]; /* forces on the one molecule, a part in each lane */
    vf64 virial, energy, field;
    vi64 whole; /* minus the count: a true lane is -1 */
};

/* ------------------------------------------------------------------------------------------------------------------------
 * exp(-x), x >= 0, within 2 units in the last place: 2^k times a polynomial on [-ln 2 / 2, ln 2 / 2] that is as near to exp()
 * as one of degree 10 can be (relative error 3e-16). Above 700 it stays what it is there, 1e-304.
 */
LANES_INLINE vf64 exp_minus(vf64 x)
{
    x = select_f64(x < 700.0, x, all_f64(700.0));
    vf64 rounded = x * -0x1.71547652b82fep+0 + NEAREST; /* k = -x / ln 2, in the last bits */
    vf64 k = rounded - NEAREST;
    vf64 r = -x - k * 0x1.62e42fefa39efp-1 - k * 0x1.abc9e3b39803fp-56; /* ln 2 in two parts */
    vf64 r2 = r * r, r4 = r2 * r2;
    vf64 low =
        (0x1.0000000000000p+0 + r * 0x1.000000000001ep+0) + r2 * (0x1.0000000000005p-1 + r * 0x1.555555554b736p-3);
    vf64 mid =
        (0x1.55555555520a4p-5 + r * 0x1.1111112ddae8bp-7) + r2 * (0x1.6c16c17f46982p-10 + r * 0x1.a01978b8b3d18p-13);
    vf64 high = (0x1.a019a6611cad5p-16 + r * 0x1.72fafebdaf273p-19) + r2 * 0x1.28a2ca617b969p-22;
    vf64 p = low + r4 * (mid + r4 * high);
    return (vf64)((vi64)p + ((vi64)rounded << 52));
}

LANES_INLINE vf64 sqrt_f64(vf64 x)
{
    for (int lane = 0; lane < LANES_F64; lane++) {
        x[lane] = sqrt(x[lane]);
    }
    return x;
}

LANES_INLINE int any(vi64 mask)
{
    int64_t some = 0;
    for (int lane = 0; lane < LANES_F64; lane++) {
        some |= mask[lane];
    }
    return some != 0;
}

LANES_INLINE vf64 masked(vi64 mask, vf64 x)
{
    return (vf64)(mask & (vi64)x);
}

/* ------------------------------------------------------------------------------------------------------------------------
 * One pair of sites
 */

/* The difference between site a of the one and b of the other, and its square. At the edge: to the nearest image. */
LANES_INLINE vf64 square(const struct field *f, const struct meeting *m, int edge, int a, int b, vf64 difference[3])
{
    for (int d = 0; d < 3; d++) {
        vf64 x = m->one[3 * a + d] - m->other[3 * b + d];
        if (edge) {
            vf64 boxes = (x * f->per_box + NEAREST) - NEAREST;
            x = x - boxes * f->box;
        }
        difference[d] = x;
    }
    return difference[0] * difference[0] + difference[1] * difference[1] + difference[2] * difference[2];
}

/* The force `factor` times the difference, to both. */
LANES_INLINE void push(struct meeting *m, struct totals *t, int a, int b, vf64 factor, const vf64 difference[3])
{
    for (int d = 0; d < 3; d++) {
        vf64 force = factor * difference[d];
        t->on_one[3 * a + d] += force;
        m->on_other[3 * b + d] -= force;
    }
}

/* Two charges whose product is `charge` times QQ; two hydrogens also repel each other, in whole pairs. */
LANES_INLINE void charges(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    const double charge = a == M && b == M ? 4.0 : a == M || b == M ? -2.0 : 1.0;
    vf64 difference[3];
    vf64 rs = square(f, m, edge, a, b, difference);
    vf64 per_r = 1.0 / sqrt_f64(rs);
    vf64 factor = per_r * per_r * per_r * (charge * QQ) + charge * f->ref1;
    if (edge) {
        factor = masked((rs < f->cutoff2) & m->live, factor);
    }
    if (charge == 1.0) {
        vf64 repulsion = exp_minus(rs * per_r * B2) * per_r * (A2 * B2);
        factor += edge ? masked(m->whole, repulsion) : repulsion;
    }
    t->virial += factor * rs;
    push(m, t, a, b, factor, difference);
}

/* Two sites without charges, in whole pairs. */
LANES_INLINE void repulsion(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    vf64 difference[3];
    vf64 rs = square(f, m, edge, a, b, difference);
    vf64 per_r = 1.0 / sqrt_f64(rs), r = rs * per_r;
    vf64 factor = a == O && b == O ? exp_minus(r * B1) * (A1 * B1)
                                   : exp_minus(r * B3) * (A3 * B3) - exp_minus(r * B4) * (A4 * B4);
    factor *= per_r;
    if (edge) {
        factor = masked(m->whole, factor);
    }
    t->virial += factor * rs;
    push(m, t, a, b, factor, difference);
}

LANES_INLINE void charge_energy(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    const double charge = a == M && b == M ? 4.0 : a == M || b == M ? -2.0 : 1.0;
    const double weight = a == M && b == M ? -2.0 : a == M || b == M ? 1.0 : -0.5;
    vf64 difference[3];
    vf64 rs = square(f, m, edge, a, b, difference);
    if (edge) {
        rs = select_f64(rs < f->cutoff2, rs, all_f64(f->cutoff2)); /* what is beyond counts as if it were there */
    }
    vf64 per_r = 1.0 / sqrt_f64(rs);
    vf64 energy = per_r * (charge * QQ), answer = rs * (weight * f->ref1);
    t->energy += edge ? masked(m->live, energy) : energy;
    t->field += edge ? masked(m->live, answer) : answer;
    if (charge == 1.0) {
        vf64 repulsion = exp_minus(rs * per_r * B2) * A2;
        t->energy += edge ? masked(m->whole, repulsion) : repulsion;
    }
}

LANES_INLINE void repulsion_energy(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    vf64 difference[3];
    vf64 r = sqrt_f64(square(f, m, edge, a, b, difference));
    vf64 energy = a == O && b == O ? exp_minus(r * B1) * A1 : exp_minus(r * B3) * A3 - exp_minus(r * B4) * A4;
    t->energy += edge ? masked(m->whole, energy) : energy;
}

/* ------------------------------------------------------------------------------------------------------------------------
 * LANES_F64 pairs
 */

LANES_INLINE void gather(struct meeting *m, const double *sites, const int32_t *index)
{
    for (int c = 0; c < SITES; c++) {
        for (int lane = 0; lane < LANES_F64; lane++) {
            m->other[c][lane] = sites[(size_t)index[lane] * SITES + (size_t)c];
        }
    }
}

LANES_INLINE void scatter(const struct meeting *m, double *forces, const int32_t *index, int n_live)
{
    double part[SITES][LANES_F64];
    memcpy(part, m->on_other, sizeof part);
    for (int lane = 0; lane < n_live; lane++) {
        double *force = forces + (size_t)index[lane] * SITES;
        for (int c = 0; c < SITES; c++) {
            force[c] += part[c][lane];
        }
    }
}

/* Moves the others to where their M is nearest. */
LANES_INLINE void bring_near(const struct field *f, struct meeting *m)
{
    for (int d = 0; d < 3; d++) {
        vf64 boxes = ((m->one[3 * M + d] - m->other[3 * M + d]) * f->per_box + NEAREST) - NEAREST;
        for (int a = 0; a < 4; a++) {
            m->other[3 * a + d] += boxes * f->box;
        }
    }
}

/* Finds which lanes count and which are whole pairs. */
LANES_INLINE void judge(const struct field *f, struct meeting *m, int n_live)
{
    static const int pairs[9][2] = {{M, M}, {M, H1}, {M, H2}, {H1, M}, {H2, M}, {H1, H1}, {H1, H2}, {H2, H1}, {H2, H2}};
    for (int lane = 0; lane < LANES_F64; lane++) {
        m->live[lane] = lane < n_live ? -1 : 0;
    }
    m->whole = m->live;
    for (int i = 0; i < 9; i++) {
        vf64 difference[3];
        m->whole &= square(f, m, 1, pairs[i][0], pairs[i][1], difference) <= f->cutoff2;
    }
}

LANES_INLINE void meet_forces(const struct field *f, struct meeting *m, struct totals *t, int edge)
{
    for (int c = 0; c < SITES; c++) {
        m->on_other[c] = all_f64(0.0);
    }
    charges(f, m, t, edge, M, M);
    charges(f, m, t, edge, H1, M);
    charges(f, m, t, edge, H2, M);
    charges(f, m, t, edge, M, H1);
    charges(f, m, t, edge, H1, H1);
    charges(f, m, t, edge, H2, H1);
    charges(f, m, t, edge, M, H2);
    charges(f, m, t, edge, H1, H2);
    charges(f, m, t, edge, H2, H2);
    if (!edge || any(m->whole)) {
        repulsion(f, m, t, edge, O, O);
        repulsion(f, m, t, edge, H1, O);
        repulsion(f, m, t, edge, H2, O);
        repulsion(f, m, t, edge, O, H1);
        repulsion(f, m, t, edge, O, H2);
    }
}

LANES_INLINE void meet_energies(const struct field *f, struct meeting *m, struct totals *t, int edge)
{
    charge_energy(f, m, t, edge, M, M);
    charge_energy(f, m, t, edge, H1, M);
    charge_energy(f, m, t, edge, H2, M);
    charge_energy(f, m, t, edge, M, H1);
    charge_energy(f, m, t, edge, H1, H1);
    charge_energy(f, m, t, edge, H2, H1);
    charge_energy(f, m, t, edge, M, H2);
    charge_energy(f, m, t, edge, H1, H2);
    charge_energy(f, m, t, edge, H2, H2);
    if (!edge || any(m->whole)) {
        repulsion_energy(f, m, t, edge, O, O);
        repulsion_energy(f, m, t, edge, H1, O);
        repulsion_energy(f, m, t, edge, H2, O);
        repulsion_energy(f, m, t, edge, O, H1);
        repulsion_energy(f, m, t, edge, O, H2);
    }
}

/* Lanes from n_live on are not counted, whatever is in them. */
LANES_INLINE void meet(const struct field *f, struct meeting *m, struct totals *t, int edge, const double *sites,
                       double *forces, const int32_t *index, int n_live)
{
    gather(m, sites, index);
    if (edge) {
        judge(f, m, n_live);
        t->whole += m->whole;
    } else {
        bring_near(f, m);
        t->whole -= 1;
    }
    if (forces) {
        meet_forces(f, m, t, edge);
        scatter(m, forces, index, n_live);
    } else {
        meet_energies(f, m, t, edge);
    }
}

/* ------------------------------------------------------------------------------------------------------------------------
 * All pairs
 */

static struct field prepare(const struct kernels_water_pairs *pairs, const double *sites, double *scratch)
{
    /* The Ms, direction by direction, and the square of the longest way from one of them to a site. */
    double reach2 = 0.0;
    for (size_t i = 0; i < pairs->rows; i++) {
        const double *site = sites + i * SITES;
        for (size_t d = 0; d < 3; d++) {
            scratch[d * pairs->rows + i] = site[3 * M + d];
        }
        for (int a = 0; a < 3; a++) {
            double x = site[3 * a] - site[9], y = site[3 * a + 1] - site[10], z = site[3 * a + 2] - site[11];
            double r2 = x * x + y * y + z * z;
            reach2 = r2 > reach2 ? r2 : reach2;
        }
    }
    double reach = 2.0 * sqrt(reach2) * (1.0 + 1e-9); /* a little more, as all of this is rounded */
    double cutoff = pairs->cutoff, inside = cutoff - reach, edge = cutoff + reach;
    return (struct field){
        .box = pairs->box,
        .per_box = 1.0 / pairs->box,
        .cutoff2 = cutoff * cutoff,
        .ref1 = -QQ / (cutoff * cutoff * cutoff),
        .inside2 = inside > 0.0 ? inside * inside : 0.0,
        .edge2 = edge * edge,
    };
}

/* The squares of the distances from one M to `many` others, which stand in three arrays. */
LANES_INLINE void look(const struct field *f, const vf64 one[3], const double *scratch, size_t rows, size_t many,
                       double *rs)
{
    for (size_t k = 0; k < many; k += LANES_F64) {
        vf64 sum = all_f64(0.0);
        for (size_t d = 0; d < 3; d++) {
            vf64 x = one[d] - load_f64(scratch + d * rows + k);
            vf64 boxes = (x * f->per_box + NEAREST) - NEAREST;
            x = x - boxes * f->box;
            sum += x * x;
        }
        store_f64(rs + k, sum);
    }
}

LANES_INLINE void sweep(const struct kernels_water_pairs *pairs, const double *sites, double *scratch, double *forces,
                        struct kernels_water_sums *sums)
{
    const struct field field = prepare(pairs, sites, scratch), *f = &field;
    struct totals t = {0};
    struct meeting m = {0};
    for (size_t i = 0; i < pairs->own; i++) {
        for (int c = 0; c < SITES; c++) {
            m.one[c] = all_f64(sites[i * SITES + (size_t)c]);
            t.on_one[c] = all_f64(0.0);
        }
        int32_t inside[CHUNK + LANES_F64], edge[CHUNK + 2 * LANES_F64];
        size_t n_inside = 0, n_edge = 0;
        size_t end = i + 1 + kernels_water_partners(pairs->first + i, pairs->n);
        for (size_t j = i + 1; j < end; j += CHUNK) {
            double rs[CHUNK];
            size_t many = end - j < CHUNK ? end - j : CHUNK;
            look(f, m.one + 3 * M, scratch + j, pairs->rows, many, rs);
            for (size_t k = 0; k < many; k++) {
                inside[n_inside] = edge[n_edge] = (int32_t)(j + k);
                n_inside += rs[k] < f->inside2;
                n_edge += (rs[k] >= f->inside2) & (rs[k] <= f->edge2);
            }
            while (n_inside >= LANES_F64) {
                n_inside -= LANES_F64;
                meet(f, &m, &t, 0, sites, forces, inside + n_inside, LANES_F64);
            }
            while (n_edge >= LANES_F64) {
                n_edge -= LANES_F64;
                meet(f, &m, &t, 1, sites, forces, edge + n_edge, LANES_F64);
            }
        }
        /* What is left fills no vector: both lists together, in two vectors at most, the last one filled up with anybody. */
        for (size_t k = 0; k < n_inside; k++) {
            edge[n_edge++] = inside[k];
        }
        for (size_t k = 0; k < n_edge; k += LANES_F64) {
            int n_live = n_edge - k < LANES_F64 ? (int)(n_edge - k) : LANES_F64;
            for (int lane = n_live; lane < LANES_F64; lane++) {
                edge[k + (size_t)lane] = edge[k];
            }
            meet(f, &m, &t, 1, sites, forces, edge + k, n_live);
        }
        for (size_t c = 0; forces && c < SITES; c++) {
            forces[i * SITES + c] += sum_f64(t.on_one[c]);
        }
    }
    sums->virial += sum_f64(t.virial);
    sums->energy += sum_f64(t.energy);
    sums->field += sum_f64(t.field);
    for (int lane = 0; lane < LANES_F64; lane++) {
        sums->whole += (size_t)-t.whole[lane];
    }
}

static void pair_forces(const struct kernels_water_pairs *pairs, const double *sites, double *scratch, double *forces,
                        struct kernels_water_sums *sums)
{
    sweep(pairs, sites, scratch, forces, sums);
}

static void pair_energies(const struct kernels_water_pairs *pairs, const double *sites, double *scratch,
                          struct kernels_water_sums *sums)
{
    sweep(pairs, sites, scratch, NULL, sums);
}

const struct water_lanes LANES(water_lanes) = {.pair_forces = pair_forces, .pair_energies = pair_energies};
