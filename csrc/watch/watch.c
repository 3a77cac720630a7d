/*
 * The provider's calls when a NIC opens and closes: taps from the environment, and the replies to `viakit inspect`.
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
