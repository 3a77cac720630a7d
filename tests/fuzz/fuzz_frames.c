/* The frame parser and all behind it: frames arrive at a VI that is connected, while its program posts, takes back
 * and disconnects. */
#include "machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    machine_run(data, len, 1);
    return 0;
}
