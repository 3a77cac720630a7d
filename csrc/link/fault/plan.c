/*
 * Selects the frames that faults apply to. Everything here is a pure function: no state, no clock, no library's random
 * numbers. The same seed therefore gives the same faults, whatever else the machine does, and viakit_fault_of() can
 * predict them. Chances depend on the frame's number among those of its kind. The number of acknowledgements or
 * retransmitted requests between two data frames depends on the machine's timing, so it must not decide which data is
 * lost.
 *
 * Each decision about a frame has a draw of its own. With a higher chance of loss, the frames lost before are still
 * lost, and the duplicated frames remain the same.
 */
#include "link/fault/fault.h"

/* The output function of SplitMix64 (Steele, Lea, Flood, OOPSLA 2014): a bijection in which each bit of the argument
 * flips about half the bits of the result. */
static uint64_t mix(uint64_t z)
{
    z += 0x9E3779B97F4A7C15ull;
    z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9ull;
    z = (z ^ (z >> 27)) * 0x94D049BB133111EBull;
    return z ^ (z >> 31);
}

/* Mixes in one argument after the other. Each result is the beginning of the next. */
uint64_t fault_draw(uint64_t seed, uint64_t number, uint32_t what)
{
    return mix(mix(mix(seed) ^ number) ^ what);
}

double fault_chance(uint64_t seed, uint64_t number, uint32_t what)
{
    return (double)(fault_draw(seed, number, what) >> 11) * 0x1p-53; /* 53 bits: the precision of a double */
}

/* The bias of the remainder is of the order of most / 2^64. */
uint64_t fault_distance(const viakit_faults *f, uint64_t number)
{
    uint32_t most = f->reorder_distance ? f->reorder_distance : FAULT_DEFAULT_DISTANCE;
    return 1 + fault_draw(f->seed, number, FAULT_DISTANCE) % most;
}

/* `first` and `last` count frames of the rule's kind, or all frames if it applies to any kind. */
static unsigned by_rule(const viakit_faults *f, uint64_t index, int kind, uint64_t of_kind)
{
    unsigned what = 0;
    for (uint32_t i = 0; i < f->n_rules && i < VIAKIT_MAX_FAULT_RULES; i++) {
        const viakit_fault_rule *r = &f->rules[i];
        uint64_t number = r->kind ? of_kind : index;
        if ((r->kind == 0 || r->kind == (uint32_t)kind) && number >= r->first && number <= r->last)
            what |= 1u << r->verdict;
    }
    return what;
}

/* Four independent draws: a frame may be duplicated and late. */
static unsigned by_chance(const viakit_faults *f, uint64_t number)
{
    unsigned what = 0;
    if (f->loss > 0 && fault_chance(f->seed, number, FAULT_LOSS) < f->loss)
        what |= 1u << VIAKIT_DROP;
    if (f->duplicate > 0 && fault_chance(f->seed, number, FAULT_DUPLICATE) < f->duplicate)
        what |= 1u << VIAKIT_DUPLICATE;
    if (f->reorder > 0 && fault_chance(f->seed, number, FAULT_REORDER) < f->reorder)
        what |= 1u << VIAKIT_HOLD;
    if (f->corrupt > 0 && fault_chance(f->seed, number, FAULT_CORRUPT) < f->corrupt)
        what |= 1u << VIAKIT_CORRUPT;
    return what;
}

/* Applies chances (for the selected kinds), then rules, then the partition. A loss replaces all other faults. */
unsigned fault_decide(const viakit_faults *f, uint64_t index, int kind, uint64_t of_kind)
{
    unsigned what = 0;
    if (f->kinds == 0 || (f->kinds >> kind & 1))
        what = by_chance(f, fault_number(kind, of_kind));
    if (f->n_rules)
        what |= by_rule(f, index, kind, of_kind) & ~(1u << VIAKIT_PASS);
    if (fault_cut_by_number(f, index))
        what |= 1u << VIAKIT_DROP;
    if (what & 1u << VIAKIT_DROP)
        what = 1u << VIAKIT_DROP; /* a lost frame needs no other fault */
    return what;
}

unsigned viakit_fault_of(const viakit_faults *faults, VIP_UINT64 index, int kind, VIP_UINT64 index_of_kind)
{
    return kind < 0 || kind > 31 || faults == NULL ? 0 : fault_decide(faults, index, kind, index_of_kind);
}
