/* The handshake, both roles: the program waits, accepts, rejects or requests, and the input is what the wire says
 * meanwhile. VIs may have a secret; then frames of the handshake carry proofs that are right, or are not. */
#include "machine.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len);

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t len)
{
    machine_run(data, len, 0);
    return 0;
}
