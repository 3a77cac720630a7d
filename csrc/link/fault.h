/*
 * fault: a decorator. It is itself a link, and stands before another one, whichever that is: it has the same table of operations, passes
 * most of them on, and does to the frames that are sent what it was told to.
 */
#ifndef VIAKIT_FAULT_H
#define VIAKIT_FAULT_H

#include "link.h"

/* Puts the decorator before (*ops, *link), which become its own, and is the *link returned. 0 or -ENOMEM. Owner only. */
int fault_wrap(struct via_nic *nic, const struct link_ops **ops, struct link **link);

/* Takes it away again: what it still holds is lost. (*ops, *link) become what was behind it. */
void fault_unwrap(const struct link_ops **ops, struct link **link);

/* A test's own decision for each frame; NULL ends it, and what was held back is lost. */
void fault_set_filter(struct link *link, viakit_frame_filter filter, void *context);

/* The peer is gone (NULL: all of them): nothing that is kept goes to it any more. */
void fault_forget_peer(struct link *link, const struct link_peer *peer);

#endif
