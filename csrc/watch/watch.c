/*
 * The provider's calls when a NIC opens and closes: taps from the environment, and the replies to `viakit inspect`.
 *
 * via/ lies below watch/ and must not call it by name (the floors in CONTRIBUTING.md). So it calls through a table, and
 * a program that is linked without this room has via_watch == NULL: its NICs have no taps and no inspection.
 *
 *     VipOpenNic    nic_opened    the tap that VIAKIT_TAP requests; its failure fails the opening
 *                   nic_visible   last: inspectors find only NICs that are completely open
 *     VipCloseNic   nic_closing   first: the tap writes the rest of its ring
 *                   nic_closed    the thread for inspectors ends with the last NIC
 */
#include "via/observer.h"
#include "watch/snapshot.h"
#include "watch/tap.h"

static const struct via_watch watch = {
    .nic_opened = via_tap_from_environment,
    .nic_visible = via_inspect_begin,
    .nic_closing = via_tap_end,
    .nic_closed = via_inspect_end,
};

/* Runs before main() and before any other thread exists, so no thread reads the pointer meanwhile. */
__attribute__((constructor)) static void begin(void)
{
    via_watch = &watch;
}
