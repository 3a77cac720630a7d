/* Adds one to the largest int. UndefinedBehaviorSanitizer has to stop it; without one it exits with 0. */
#include <limits.h>

int main(void)
{
    volatile int n = INT_MAX;

    n = n + 1;
    return 0;
}
