/*
 * test_own.c - ownership of a NIC (via/own.h): which thread has the bias, and that one thread at a time is inside.
 *
 * The first thread has the bias. Another application thread takes it away, the NIC's own thread does not. The first
 * thread gets it back after VIA_OWN_STREAK entries in a row, no other thread ever does.
 */
#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

#include "check.h"
#include "via/own.h"

#define VISITS 1000 /* of each other thread */

static struct via_own own;
static long n_inside;     /* changed inside only, without atomic operations */
static atomic_int n_done; /* other threads that have ended */

static void visit(void)
{
    via_own_enter(&own);
    n_inside++;
    via_own_leave(&own);
}

static void visit_often(int n)
{
    for (int i = 0; i < n; i++)
        visit();
}

static void *visit_once(void *as_nic_thread)
{
    if (as_nic_thread) {
        via_own_enter_slow(&own, 1);
        n_inside++;
        via_own_leave_slow(&own);
    } else
        visit();
    return NULL;
}

/* More entries in a row than the first thread would need. */
static void *visit_in_a_row(void *unused)
{
    (void)unused;
    visit_often(3 * VIA_OWN_STREAK);
    CHECK(own.bias != via_thread_id);
    return NULL;
}

static void in_another_thread(void *(*run)(void *), void *argument)
{
    pthread_t thread;
    CHECK(pthread_create(&thread, NULL, run, argument) == 0);
    pthread_join(thread, NULL);
}

/* Enters at moments at which the first thread has the bias, is about to get it, or has just lost it. */
static void *visit_now_and_then(void *as_nic_thread)
{
    for (int i = 0; i < VISITS; i++) {
        visit_once(as_nic_thread);
        usleep(20 + (useconds_t)(i * 37 % 300));
    }
    atomic_fetch_add(&n_done, 1);
    return NULL;
}

static void bias(void)
{
    via_own_init(&own);
    visit();
    if (own.no_bias) {
        printf("no bias here: the kernel has no membarrier, or a tool cannot see it\n");
        return;
    }
    CHECK(own.bias == via_thread_id);
    in_another_thread(visit_once, &own);
    CHECK(own.bias == via_thread_id);
    in_another_thread(visit_once, NULL);
    CHECK(own.bias == 0);
    visit_often(VIA_OWN_STREAK);
    CHECK(own.bias == 0);
    visit();
    CHECK(own.bias == via_thread_id);
    in_another_thread(visit_in_a_row, NULL);
    visit_often(VIA_OWN_STREAK - 1);
    in_another_thread(visit_once, NULL); /* begins the streak again */
    visit_often(VIA_OWN_STREAK);
    CHECK(own.bias == 0);
    visit();
    CHECK(own.bias == via_thread_id);
}

static void exclusion(void)
{
    pthread_t program, nic;
    long n = 1;
    via_own_init(&own);
    n_inside = 0;
    visit();
    CHECK(pthread_create(&program, NULL, visit_now_and_then, NULL) == 0);
    CHECK(pthread_create(&nic, NULL, visit_now_and_then, &own) == 0);
    for (; atomic_load(&n_done) < 2; n += 100)
        visit_often(100);
    pthread_join(program, NULL);
    pthread_join(nic, NULL);
    CHECK(n_inside == n + 2 * VISITS);
}

int main(void)
{
    check_deadline(60);
    bias();
    exclusion();
    return 0;
}
