/*
 * Two threads count in a plain variable. ThreadSanitizer has to report the race; without one the program exits with 0.
 * The threads run one after the other in time more often than not: a race is a missing order, not an unlucky moment.
 */
#include <pthread.h>
#include <stddef.h>

static int shared;

static void *count(void *unused)
{
    (void)unused;
    for (int i = 0; i < 1000; i++)
        shared++;
    return NULL;
}

int main(void)
{
    pthread_t thread;

    if (pthread_create(&thread, NULL, count, NULL))
        return 0;
    count(NULL);
    pthread_join(thread, NULL);
    return 0;
}
