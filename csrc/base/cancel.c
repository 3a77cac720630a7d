/* See cancel.h. The program's own cancellation state is stored per thread, from the outermost hold to its release. */
#include "base/cancel.h"

#include <pthread.h>

#define NOT_HELD (-1)

static __thread int program_state = NOT_HELD;

/* Only the outermost hold changes the thread's state, so a hold inside another costs one comparison. */
int vk_cancel_hold(void)
{
    if (program_state != NOT_HELD)
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &program_state);
    return 1;
}

void vk_cancel_release(const int *outermost)
{
    if (!*outermost)
        return;
    /* Reset before the program's state returns: with asynchronous cancellation the thread may end in that call. Its
     * clean-up handlers may then call viakit, which must find no hold. */
    int state = program_state;
    program_state = NOT_HELD;
    pthread_setcancelstate(state, NULL);
}

/* Only within a hold, because program_state is no state otherwise. abandon runs as a clean-up handler of this thread,
 * and only if the thread is cancelled between the push and the pop. Otherwise the hold is in force again afterwards. */
void vk_cancel_point(void (*abandon)(void *), void *argument)
{
    int state;
    /* If the program has disabled cancellation itself, the state stays disabled, and nothing happens here. */
    pthread_cleanup_push(abandon, argument);
    pthread_setcancelstate(program_state, NULL);
    pthread_testcancel();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_cleanup_pop(0);
}
