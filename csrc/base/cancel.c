/* See cancel.h. What the program had set is kept per thread, from the outermost hold to its release. */
#include "cancel.h"

#include <pthread.h>

#define NOT_HELD (-1)

static __thread int of_the_program = NOT_HELD;

int vk_cancel_hold(void)
{
    if (of_the_program != NOT_HELD)
        return 0;
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &of_the_program);
    return 1;
}

void vk_cancel_release(const int *outermost)
{
    if (!*outermost)
        return;
    int state = of_the_program;
    of_the_program = NOT_HELD;
    pthread_setcancelstate(state, NULL);
}

void vk_cancel_point(void (*abandon)(void *), void *argument)
{
    int state;
    pthread_cleanup_push(abandon, argument);
    pthread_setcancelstate(of_the_program, NULL);
    pthread_testcancel();
    pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &state);
    pthread_cleanup_pop(0);
}
