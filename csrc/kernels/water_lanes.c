/*
 * Water's sums over pairs of molecules, LANES_F64 pairs at a time.
 *
 * For each molecule, "one", the distances between its M and those of its partners are computed first. That is cheap:
 * three differences instead of forty-two. No site is further than `reach` / 2 from its M, so with a cutoff c
 *
 *     distance of the Ms   < c - reach        all sites are within the cutoff:     list INSIDE
 *                          < c - reach / 4    perhaps all are:                             NEAR
 *                          < c + reach        some may be:                                 FAR
 *                          above              none is: the pair is skipped
 *
 * Whenever a list has LANES_F64 entries they are computed, as "the others", a lane each. Inside, no distance is
 * compared with the cutoff. The nearest image of the others' M has the nearest images of all their sites, so they are
 * moved there once. Near and far, at the edge, each difference uses its own nearest image. Each distance is compared
 * with the cutoff, and masks select the lanes that count. The two lists only make it likely that all lanes of a vector
 * have repulsion, or none. The remainder of a molecule waits for the remainders of the next ones; then each lane has a
 * "one" of its own.
 *
 * Contracts: kernels.h. Compiled once per level of vector instructions.
 *
 * Invariants. Every pair is met once: as INSIDE, NEAR or FAR in a full vector, or in a remainder, with masked lanes. A
 * lane that does not count contributes exactly 0 to every sum, whatever its contents (masked()). Sums are kept by lane,
 * so a result depends on LANES_F64, but not on timing.
 *
 * Any thread may call, with its own scratch, forces and sums. Nothing is allocated: lists and vectors are on the
 * stack.
 */
#include <math.h>

#include "water_lanes.h"
#include "water_model.h"

#define SITES 12 /* doubles per molecule: H O H M, three coordinates each */
#define CHUNK 64 /* partners whose distances are computed before lists are emptied; a multiple of LANES_F64 */
/* Adding and subtracting it rounds to the nearest integer: above 2^52 doubles are integers. 1.5 times 2^52 leaves room
 * for negative ones. */
#define NEAREST 0x1.8p52

enum site { H1, O, H2, M };

/* The constants of a sum. */
struct field {
    double box, per_box; /* the edge, and 1 / edge */
    double cutoff2;      /* the cutoff's square */
    double ref1;         /* of the reaction field, per QQ: -QQ / cutoff^3 */
    double inside2;      /* squares of distances between Ms: below this all sites are within the cutoff, */
    double near2;        /* below this perhaps all are, */
    double edge2;        /* above this none is */
};

/* One molecule in all lanes and another one in each, with the contributions of the pair. */
struct meeting {
    const vf64 *one; /* SITES vectors */
    vf64 other[SITES];
    vf64 on_other[SITES]; /* forces */
    vi64 live;            /* lanes that count */
    vi64 whole;           /* lanes in which all nine distances between charges are within the cutoff */
};

struct totals {
    vf64 on_one[SITES]; /* forces on the one molecule, a part in each lane */
    vf64 virial, energy, field;
    vi64 whole; /* minus the count: a true lane is -1 */
};

/* ---------------------------------------------------------------------------------------------------------------------
 * exp(-rate r), r >= 0, as a power of two: 2^k times a polynomial of degree 10 that equals 2^x within 3e-16 for x in
 * [-1/2, 1/2]. Precision is lost in the exponent: a relative error of 1e-16 times rate r. Results below 1e-300 are
 * clamped there. */
LANES_INLINE vf64 fall(double rate, vf64 r)
{
    vf64 power = r * (rate * -0x1.71547652b82fep+0); /* -1 / ln 2 */
    power = select_f64(power > -1000.0, power, all_f64(-1000.0));
    vf64 rounded = power + NEAREST; /* k is in the last bits ... */
    vf64 x = power - (rounded - NEAREST);
    vf64 x2 = x * x, x4 = x2 * x2;
    vf64 low =
        (0x1.0000000000000p+0 + x * 0x1.62e42fefa3a19p-1) + x2 * (0x1.ebfbdff82c598p-3 + x * 0x1.c6b08d703ce1dp-5);
    vf64 mid =
        (0x1.3b2ab6fba1dd0p-7 + x * 0x1.5d87fe9d8001bp-10) + x2 * (0x1.4309130972778p-13 + x * 0x1.ffcb53f4ed5dfp-17);
    vf64 high = (0x1.62bfd46f7ae0cp-20 + x * 0x1.b675cde5a49adp-24) + x2 * 0x1.e6064f626db12p-28;
    vf64 p = low + x4 * (mid + x4 * high);
    return (vf64)((vi64)p + ((vi64)rounded << 52)); /* ... and is added to the exponent */
}

/* Saves the exponentials of a vector in which no pair counts. */
LANES_INLINE int any(vi64 mask)
{
    int64_t some = 0;
    for (int lane = 0; lane < LANES_F64; lane++) {
        some |= mask[lane];
    }
    return some != 0;
}

/* Clears the other lanes, whatever they hold: multiplying by 0 would keep infinities and NaN. */
LANES_INLINE vf64 masked(vi64 mask, vf64 x)
{
    return (vf64)(mask & (vi64)x);
}

/* ---------------------------------------------------------------------------------------------------------------------
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

/* Add the force `factor` times the difference to both molecules. */
LANES_INLINE void add_force(struct meeting *m, struct totals *t, int a, int b, vf64 factor, const vf64 difference[3])
{
    for (int d = 0; d < 3; d++) {
        vf64 force = factor * difference[d];
        t->on_one[3 * a + d] += force;
        m->on_other[3 * b + d] -= force;
    }
}

/* Two charges whose product is `charge` times QQ. Two hydrogens also repel each other, in whole pairs. The reaction
 * field makes the force of the charges 0 at the cutoff. As a, b and edge are constants where this is inlined, no
 * condition on them is left. */
LANES_INLINE void charges(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    const double charge = a == M && b == M ? 4.0 : a == M || b == M ? -2.0 : 1.0;
    vf64 difference[3];
    vf64 rs = square(f, m, edge, a, b, difference);
    vf64 per_r = 1.0 / root_f64(rs);
    vf64 factor = per_r * per_r * per_r * (charge * QQ) + charge * f->ref1;
    if (edge) {
        factor = masked((rs < f->cutoff2) & m->live, factor);
    }
    if (charge == 1.0) {
        vf64 repulsion = fall(B2, rs * per_r) * per_r * (A2 * B2);
        factor += edge ? masked(m->whole, repulsion) : repulsion;
    }
    t->virial += factor * rs;
    add_force(m, t, a, b, factor, difference);
}

/* Two sites without charges, in whole pairs. */
LANES_INLINE void repulsion(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    vf64 difference[3];
    vf64 rs = square(f, m, edge, a, b, difference);
    vf64 per_r = 1.0 / root_f64(rs), r = rs * per_r;
    vf64 factor = a == O && b == O ? fall(B1, r) * (A1 * B1) : fall(B3, r) * (A3 * B3) - fall(B4, r) * (A4 * B4);
    factor *= per_r;
    if (edge) {
        factor = masked(m->whole, factor);
    }
    t->virial += factor * rs;
    add_force(m, t, a, b, factor, difference);
}

/* The energies whose derivatives are the forces of charges(). That of the reaction field is -charge / 2 times ref1
 * times the square of the distance, hence the weights. */
LANES_INLINE void charge_energy(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    const double charge = a == M && b == M ? 4.0 : a == M || b == M ? -2.0 : 1.0;
    const double weight = a == M && b == M ? -2.0 : a == M || b == M ? 1.0 : -0.5;
    vf64 difference[3];
    vf64 rs = square(f, m, edge, a, b, difference);
    if (edge) {
        rs = select_f64(rs < f->cutoff2, rs,
                        all_f64(f->cutoff2)); /* a distance beyond the cutoff counts as the cutoff */
    }
    vf64 per_r = 1.0 / root_f64(rs);
    vf64 energy = per_r * (charge * QQ), answer = rs * (weight * f->ref1);
    t->energy += edge ? masked(m->live, energy) : energy;
    t->field += edge ? masked(m->live, answer) : answer;
    if (charge == 1.0) {
        vf64 repulsion = fall(B2, rs * per_r) * A2;
        t->energy += edge ? masked(m->whole, repulsion) : repulsion;
    }
}

/* The energies whose derivatives are the forces of repulsion(). */
LANES_INLINE void repulsion_energy(const struct field *f, struct meeting *m, struct totals *t, int edge, int a, int b)
{
    vf64 difference[3];
    vf64 r = root_f64(square(f, m, edge, a, b, difference));
    vf64 energy = a == O && b == O ? fall(B1, r) * A1 : fall(B3, r) * A3 - fall(B4, r) * A4;
    t->energy += edge ? masked(m->whole, energy) : energy;
}

/* ---------------------------------------------------------------------------------------------------------------------
 * LANES_F64 pairs
 */

/* Gather LANES_F64 molecules, one per lane, component by component:
 *
 *      sites[index[0]]   x0 y0 z0 ...            molecules[0]   x0 x1 x2 x3
 *      sites[index[1]]   x1 y1 z1 ...    -->     molecules[1]   y0 y1 y2 y3      ... */
LANES_INLINE void gather(vf64 molecules[SITES], const double *sites, const int32_t *index)
{
    for (int c = 0; c < SITES; c++) {
        for (int lane = 0; lane < LANES_F64; lane++) {
            molecules[c][lane] = sites[(size_t)index[lane] * SITES + (size_t)c];
        }
    }
}

/* Add lane by lane to rows of 12, because two lanes may have the same row. */
LANES_INLINE void scatter(const vf64 part[SITES], double *forces, const int32_t *index, int n_live)
{
    typedef double quad __attribute__((vector_size(32)));
    for (int lane = 0; lane < LANES_F64; lane++) {
        if (lane >= n_live) {
            /* Unused lanes repeat an index: nothing may be added for them. */
            break;
        }
        double *force = forces + (size_t)index[lane] * SITES;
        for (int c = 0; c < SITES; c += 4) {
            quad sum;
            memcpy(&sum, force + c, sizeof sum);
            sum += (quad){part[c][lane], part[c + 1][lane], part[c + 2][lane], part[c + 3][lane]};
            memcpy(force + c, &sum, sizeof sum);
        }
    }
}

/* Move the others to the nearest image of their M. */
LANES_INLINE void bring_near(const struct field *f, struct meeting *m)
{
    for (int d = 0; d < 3; d++) {
        vf64 boxes = ((m->one[3 * M + d] - m->other[3 * M + d]) * f->per_box + NEAREST) - NEAREST;
        for (int a = 0; a < 4; a++) {
            m->other[3 * a + d] += boxes * f->box;
        }
    }
}

/* Determine the lanes that count and those that are whole pairs. */
LANES_INLINE void classify(const struct field *f, struct meeting *m, int n_live)
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

/* The pairs of sites, in an order that keeps the sites of one molecule in registers: apply `it` to each pair. */
#define OF_CHARGES(it, ...)                                                       \
    do {                                                                          \
        it(__VA_ARGS__, M, M), it(__VA_ARGS__, H1, M), it(__VA_ARGS__, H2, M);    \
        it(__VA_ARGS__, M, H1), it(__VA_ARGS__, H1, H1), it(__VA_ARGS__, H2, H1); \
        it(__VA_ARGS__, M, H2), it(__VA_ARGS__, H1, H2), it(__VA_ARGS__, H2, H2); \
    } while (0)
#define OF_OXYGEN(it, ...)                                                     \
    do {                                                                       \
        it(__VA_ARGS__, O, O), it(__VA_ARGS__, H1, O), it(__VA_ARGS__, H2, O); \
        it(__VA_ARGS__, O, H1), it(__VA_ARGS__, O, H2);                        \
    } while (0)

/* All sites of one vector of pairs. Oxygens have no charge, so they meet only in whole pairs. */
LANES_INLINE void meet_forces(const struct field *f, struct meeting *m, struct totals *t, int edge)
{
    for (int d = 0; d < 3; d++) {
        m->on_other[3 * H1 + d] = m->on_other[3 * O + d] = all_f64(0.0);
        m->on_other[3 * H2 + d] = m->on_other[3 * M + d] = all_f64(0.0);
    }
    OF_CHARGES(charges, f, m, t, edge);
    if (!edge || any(m->whole)) {
        OF_OXYGEN(repulsion, f, m, t, edge);
    }
}

/* The same pairs of sites as meet_forces. */
LANES_INLINE void meet_energies(const struct field *f, struct meeting *m, struct totals *t, int edge)
{
    OF_CHARGES(charge_energy, f, m, t, edge);
    if (!edge || any(m->whole)) {
        OF_OXYGEN(repulsion_energy, f, m, t, edge);
    }
}

/* Lanes from n_live on do not count, whatever their contents; inside, all lanes do. */
typedef void meet(const struct field *f, const vf64 one[SITES], struct totals *t, const double *sites, double *forces,
                  const int32_t *index, int n_live);

/* A full vector of INSIDE pairs: no masks, and the same number of whole pairs in each lane. */
static void forces_inside(const struct field *f, const vf64 one[SITES], struct totals *t, const double *sites,
                          double *forces, const int32_t *index, int n_live)
{
    (void)n_live;
    struct meeting m;
    m.one = one;
    gather(m.other, sites, index);
    bring_near(f, &m);
    /* A list is computed here only when it fills all lanes. */
    t->whole -= 1;
    meet_forces(f, &m, t, 0);
    scatter(m.on_other, forces, index, LANES_F64);
}

/* NEAR, FAR and remainders: classify() sets the masks first. */
static void forces_at_edge(const struct field *f, const vf64 one[SITES], struct totals *t, const double *sites,
                           double *forces, const int32_t *index, int n_live)
{
    struct meeting m;
    m.one = one;
    gather(m.other, sites, index);
    classify(f, &m, n_live);
    t->whole += m.whole;
    meet_forces(f, &m, t, 1);
    scatter(m.on_other, forces, index, n_live);
}

/* As forces_inside, without forces to scatter. */
static void energies_inside(const struct field *f, const vf64 one[SITES], struct totals *t, const double *sites,
                            double *forces, const int32_t *index, int n_live)
{
    (void)forces;
    (void)n_live;
    struct meeting m;
    m.one = one;
    gather(m.other, sites, index);
    bring_near(f, &m);
    t->whole -= 1;
    meet_energies(f, &m, t, 0);
}

/* As forces_at_edge, without forces to scatter. */
static void energies_at_edge(const struct field *f, const vf64 one[SITES], struct totals *t, const double *sites,
                             double *forces, const int32_t *index, int n_live)
{
    (void)forces;
    struct meeting m;
    m.one = one;
    gather(m.other, sites, index);
    classify(f, &m, n_live);
    t->whole += m.whole;
    meet_energies(f, &m, t, 1);
}

/* ---------------------------------------------------------------------------------------------------------------------
 * All pairs
 */

/* rows, box, cutoff: see kernels_water_pairs. scratch: [3][rows]. */
static struct field prepare(const struct kernels_water_pairs *pairs, const double *sites, double *scratch)
{
    /* The Ms, direction by direction, and the square of the largest distance from one of them to a site. */
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
    double reach = 2.0 * sqrt(reach2) * (1.0 + 1e-9); /* slightly larger, because all of this is rounded */
    double cutoff = pairs->cutoff, inside = cutoff - reach, near = cutoff - reach / 4, edge = cutoff + reach;
    return (struct field){
        .box = pairs->box,
        .per_box = 1.0 / pairs->box,
        .cutoff2 = cutoff * cutoff,
        .ref1 = -QQ / (cutoff * cutoff * cutoff),
        .inside2 = inside > 0.0 ? inside * inside : 0.0,
        .near2 = near > 0.0 ? near * near : 0.0,
        .edge2 = edge * edge,
    };
}

/* The squares of the distances from one M to `many` others, which are stored in three arrays. */
LANES_INLINE void measure_distances(const struct field *f, const vf64 one[3], const double *scratch, size_t rows,
                                    size_t many, double *rs)
{
    /* The last vector may read up to LANES_F64 - 1 numbers too many: of the next direction, or of the end of the
     * scratch. It may also write as many, for which rs has room, since CHUNK is a multiple. */
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

/* Pairs by their distance. */
enum list { INSIDE, NEAR, FAR, N_LISTS };

struct lists {
    /* Up to LANES_F64 - 1 entries are left from one chunk to the next. */
    int32_t others[N_LISTS][CHUNK + LANES_F64];
    size_t n[N_LISTS];
    /* Remainders of other molecules: less than a vector, and the remainder of one more molecule. */
    int32_t rest_one[(N_LISTS + 1) * LANES_F64], rest_other[(N_LISTS + 1) * LANES_F64];
    size_t n_rest;
};

/* Enter partners [j, j + many) in the lists that they belong to, without a branch: each is written behind the end of
 * every list, and only one end moves on. A pair beyond the edge moves none. */
LANES_INLINE void sort(const struct field *f, struct lists *l, const double *rs, size_t j, size_t many)
{
    size_t n_inside = l->n[INSIDE], n_near = l->n[NEAR], n_far = l->n[FAR];
    for (size_t k = 0; k < many; k++) {
        int32_t other = (int32_t)(j + k);
        l->others[INSIDE][n_inside] = l->others[NEAR][n_near] = l->others[FAR][n_far] = other;
        size_t inside = rs[k] < f->inside2, near = rs[k] < f->near2, any = rs[k] <= f->edge2;
        n_inside += inside;
        n_near += near - inside;
        n_far += any - near;
    }
    l->n[INSIDE] = n_inside;
    l->n[NEAR] = n_near;
    l->n[FAR] = n_far;
}

/* Compute the last ones of the remainders, a full vector or all that is left. Overwrites on_one, which sweep() has
 * added to the forces before. */
static void meet_rest(const struct field *f, struct lists *l, struct totals *t, const double *sites, double *forces,
                      meet *at_edge)
{
    size_t n_live = l->n_rest < LANES_F64 ? l->n_rest : LANES_F64;
    l->n_rest -= n_live;
    int32_t *one = l->rest_one + l->n_rest, *other = l->rest_other + l->n_rest;
    for (size_t lane = n_live; lane < LANES_F64; lane++) {
        /* A molecule that is already present: it costs nothing and is not counted. */
        one[lane] = one[0];
        other[lane] = other[0];
    }
    vf64 ones[SITES];
    gather(ones, sites, one);
    for (int c = 0; c < SITES; c++) {
        t->on_one[c] = all_f64(0.0);
    }
    at_edge(f, ones, t, sites, forces, other, (int)n_live);
    if (forces) {
        scatter(t->on_one, forces, one, (int)n_live);
    }
}

/* Sum over all pairs. `own` of the rows are a "one" here; the others are only partners. */
static void sweep(const struct kernels_water_pairs *pairs, const double *sites, double *scratch, double *forces,
                  struct kernels_water_sums *sums, meet *inside, meet *at_edge)
{
    const struct field field = prepare(pairs, sites, scratch), *f = &field;
    struct lists lists = {.n_rest = 0}, *l = &lists;
    struct totals t = {0};
    vf64 one[SITES];
    for (size_t i = 0; i < pairs->own; i++) {
        for (int c = 0; c < SITES; c++) {
            one[c] = all_f64(sites[i * SITES + (size_t)c]);
            t.on_one[c] = all_f64(0.0);
        }
        memset(l->n, 0, sizeof l->n);
        /* The rows behind it, as many as it has partners in the ring of all molecules. */
        size_t end = i + 1 + kernels_water_partners(pairs->first + i, pairs->n);
        for (size_t j = i + 1; j < end; j += CHUNK) {
            double rs[CHUNK];
            size_t many = end - j < CHUNK ? end - j : CHUNK;
            measure_distances(f, one + 3 * M, scratch + j, pairs->rows, many, rs);
            sort(f, l, rs, j, many);
            for (int list = 0; list < N_LISTS; list++) {
                meet *how = list == INSIDE ? inside : at_edge;
                /* From the end, so that the rest stays at the beginning of the list. */
                while (l->n[list] >= LANES_F64) {
                    l->n[list] -= LANES_F64;
                    how(f, one, &t, sites, forces, l->others[list] + l->n[list], LANES_F64);
                }
            }
        }
        for (size_t c = 0; forces && c < SITES; c++) {
            forces[i * SITES + c] += sum_f64(t.on_one[c]);
        }
        for (int list = 0; list < N_LISTS; list++) {
            for (size_t k = 0; k < l->n[list]; k++) {
                l->rest_one[l->n_rest] = (int32_t)i;
                l->rest_other[l->n_rest++] = l->others[list][k];
            }
        }
        while (l->n_rest >= LANES_F64) {
            meet_rest(f, l, &t, sites, forces, at_edge);
        }
    }
    if (l->n_rest) {
        meet_rest(f, l, &t, sites, forces, at_edge);
    }
    sums->virial += sum_f64(t.virial);
    sums->energy += sum_f64(t.energy);
    sums->field += sum_f64(t.field);
    for (int lane = 0; lane < LANES_F64; lane++) {
        sums->whole += (size_t)-t.whole[lane];
    }
}

/* Adds to forces and sums, as kernels.h promises. */
static void pair_forces(const struct kernels_water_pairs *pairs, const double *sites, double *scratch, double *forces,
                        struct kernels_water_sums *sums)
{
    sweep(pairs, sites, scratch, forces, sums, forces_inside, forces_at_edge);
}

static void pair_energies(const struct kernels_water_pairs *pairs, const double *sites, double *scratch,
                          struct kernels_water_sums *sums)
{
    sweep(pairs, sites, scratch, NULL, sums, energies_inside, energies_at_edge);
}

const struct water_lanes LANES(water_lanes) = {.pair_forces = pair_forces, .pair_energies = pair_energies};
