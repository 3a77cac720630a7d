/*
 * test_life.h - what the files of test_life share.
 */
#ifndef TEST_LIFE_H
#define TEST_LIFE_H

#include "harness.h"

/* A connection that hears nothing lives for a third of a second; in the long form as long as the defaults say. */
void life_impatient(viakit_nic_options *o);
/* The connection is over: what was posted came back, and the VI can be used again. */
void life_over(endpoint *e, int n_errors);
/* Prints how long something took. */
void life_say(side *s, const char *what, double since);

/* life_end.c */
void client_killed_a(side *s);
void client_killed_b(side *s);
void left_a(side *s);
void left_b(side *s);
void outlived_a(side *s);
void outlived_b(side *s);
void closed_a(side *s);
void closed_b(side *s);
void callers_gone_a(side *s);
void callers_gone_b(side *s);

#endif
