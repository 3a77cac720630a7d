/*
 * test_conformance.c - what VIPL promises, on any link: test_conformance LINK [CASE...]; see harness.h for LINK.
 *
 * Read the cases in the order of conformance.h: connections, messages, RDMA writes, errors, waiting. Every case is
 * written once and is independent of the link. Where the promise differs by reliability level, the case has one branch
 * for it.
 */
#include "conformance.h"

void wrap_soon(viakit_nic_options *o)
{
    o->first_psn = 0xfffffff0u;
}

void small_rings(viakit_nic_options *o)
{
    o->ring_slots = 64;
    o->window = 8;
}

static const test_case cases[] = {
#define ENTRY(name, flags, options) {#name, name##_a, name##_b, flags, options},
    ALL_CASES(ENTRY)
#undef ENTRY
};

int main(int argc, char **argv)
{
    return harness_main(argc, argv, cases, sizeof(cases) / sizeof(cases[0]));
}
