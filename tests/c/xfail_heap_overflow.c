/* Writes one byte past an allocation. AddressSanitizer has to stop it; without one it exits with 0. */
#include <stdlib.h>

int main(void)
{
    volatile size_t len = 64;
    volatile char *buffer = malloc(len);

    if (!buffer)
        return 0;
    buffer[len] = 1;
    free((void *)buffer);
    return 0;
}
