/*
 * test_life.h - declarations shared by the files of test_life.
 */
#ifndef TEST_LIFE_H
#define TEST_LIFE_H

#include "harness.h"

/* Options with which a connection to a silent peer is lost after a third of a second; in the long form the defaults. */
void life_impatient(viakit_nic_options *o);
void life_impatient_and_small(viakit_nic_options *o); /* and with a small ring */
/* Return whether all threads of a process are stopped. */
int life_stands_still(pid_t pid);
/* Wait for a time in which no counter or state can report that the peer is silent. */
void life_feel_silence(void);
/* Check that the connection is lost, that posted descriptors have completed, and that the VI can be used again. */
void life_over(endpoint *e, int n_errors);
/* Print the time since `since`. */
void life_report(side *s, const char *what, double since);

/* A round of LIFE_MESSAGES messages with numbers from A to B. life_prepare opens the endpoint; on B it posts the
 * receives of all rounds, on A it stores the descriptors of a round in d, which life_post_all posts. life_all_sent and
 * life_all_received wait until a round is complete, and check it. */
#define LIFE_MESSAGES 40
#define ROOM 4096 /* bytes of a message's buffer */
void life_prepare(endpoint *e, side *s, VIP_DESCRIPTOR *d[LIFE_MESSAGES], VIP_RELIABILITY_LEVEL level, int n_rounds);
void life_post_all(endpoint *e, VIP_DESCRIPTOR *d[LIFE_MESSAGES]);
void life_all_sent(endpoint *e, VIP_DESCRIPTOR *d[LIFE_MESSAGES]);
void life_all_received(endpoint *e);

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
void stopped_idle_a(side *s);
void stopped_idle_b(side *s);

/* life_wire.c */
void interface_down_a(side *s);
void interface_down_b(side *s);
void interface_down_long_a(side *s);
void interface_down_long_b(side *s);
void mtu_lowered_a(side *s);
void mtu_lowered_b(side *s);
void mtu_raised_a(side *s);
void mtu_raised_b(side *s);

#endif
