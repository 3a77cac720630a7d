/*
 * snapshot.h - the state of a NIC at one moment, as text (snapshot.c), and the thread that serves it to `viakit
 * inspect` (inspect.c).
 */
#ifndef VIAKIT_SNAPSHOT_H
#define VIAKIT_SNAPSHOT_H

#include "via/nic.h"

/* Values of one NIC, noted at one moment. It belongs to the caller, has no connection to the NIC any more, and is used
 * by one thread at a time. */
struct snapshot;

/* Copies the state of this handle's NIC. NULL: there is no such NIC, or memory is exhausted; *code has the code, with
 * an explanation. Blocks only while another thread owns the NIC, and allocates only without ownership. The caller frees
 * the result with via_snapshot_free(). */
struct snapshot *via_snapshot_take(VIP_NIC_HANDLE handle, VIP_RETURN *code);
void via_snapshot_free(struct snapshot *s);

/* Writes the text and returns its length, whether it fitted or not. The text ends with a zero byte if size is not 0.
 * The length is without that byte. Call it once with size 0 to learn the length; equal snapshots give equal texts. */
size_t via_snapshot_text(const struct snapshot *s, char *text, size_t size);

/* ---------------------------------------------------------------- inspect.c: serving `viakit inspect` */

/* Makes the NIC visible to inspectors; the process serves them from now on. It takes no ownership. If no thread or no
 * name is available, the NIC works as well, and cannot be inspected. */
void via_inspect_begin(struct via_nic *nic);
/* Notes that a visible NIC was closed; after the last one the process serves no more inspectors. Called without
 * ownership of any NIC. It joins the thread, which gives up a reply that it is sending. */
void via_inspect_end(void);

#endif
