/* Schedules in virtual time: hand-made paths whose times can be computed on paper. */
#include <math.h>
#include <string.h>

#include "check.h"
#include "sim/replay.h"

/* CPU 1000 ns for each message and side, bus 1 ns, wire 8 ns for each byte, frames of 1000 bytes, 500 ns of delay. */
static sim_path simple(void)
{
    sim_path p = {
        .message_ns = {1000, 0, 0, 0, 0, 1000}, .byte_ns = {0, 1, 8, 0, 1, 0}, .delay_ns = 500, .payload = 1000};
    return p;
}

static sim_model model_of(sim_path p)
{
    sim_model m = {.eager_limit = 10000, .request_ns = 2000, .local_flag_ns = 100};
    for (int i = 0; i < SIM_PATHS; i++)
        m.path[i] = p;
    return m;
}

static int near(double a, double b)
{
    return fabs(a - b) < 1e-6;
}

static void one_message(void)
{
    sim_path p = simple();
    CHECK(near(sim_message_ns(&p, 0), 2500));
    CHECK(near(sim_message_ns(&p, 1000), 2500 + 1000 + 8000 + 1000));
    /* Three frames: the wire sets the pace. */
    CHECK(near(sim_message_ns(&p, 3000), 2500 + 1000 + 3 * 8000 + 1000));
    /* One frame in the window: each waits for the acknowledgement of the one before. */
    p.window = 1;
    p.ack_ns = 700;
    CHECK(near(sim_message_ns(&p, 3000), 2500 + 3 * (1000 + 8000 + 1000) + 2 * (500 + 700)));
    p.window = 100;
    CHECK(near(sim_message_ns(&p, 3000), 2500 + 1000 + 3 * 8000 + 1000));
}

#define RUN(n, ops, model)                                                                                            \
    sim_replay(&(model), &(sim_schedule){n, n, (const int64_t[]){0, 1, 2, 3, 4}, first, (const sim_op *)(ops)}, ends, \
               waits, &result)

static void ping_pong_agrees_with_one_message(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 2, 4};
    for (int64_t n = 0; n <= 9000; n += 3000) {
        sim_op ops[] = {{SIM_SEND, 1, 7, n, 0}, {SIM_RECV, 1, 7, 0, 0}, {SIM_RECV, 0, 7, 0, 0}, {SIM_SEND, 0, 7, n, 0}};
        sim_model m = model_of(simple());
        CHECK(RUN(2, ops, m) == SIM_OK);
        CHECK(near(ends[0], 2 * sim_message_ns(&m.path[0], (double)n)));
        CHECK(result.messages == 2 && result.bytes == 2 * n);
        CHECK(near(result.end_ns, ends[0]));
    }
}

static void rendezvous_waits_for_the_receiver(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 1, 3};
    sim_op ops[] = {{SIM_SEND, 1, 0, 20000, 0}, {SIM_COMPUTE, 0, 0, 0, 50000}, {SIM_RECV, 0, 0, 0, 0}};
    sim_model m = model_of(simple());
    CHECK(RUN(2, ops, m) == SIM_OK);
    CHECK(near(ends[1], 50000 + 2000 + sim_message_ns(&m.path[0], 20000)));
    CHECK(near(waits[0], 52000));
}

static void receivers_port_queues(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 1, 2, 5};
    sim_op ops[] = {{SIM_SEND, 2, 0, 1000, 0},
                    {SIM_SEND, 2, 0, 1000, 0},
                    {SIM_IRECV, 0, 0, 0, 0},
                    {SIM_IRECV, 1, 0, 0, 0},
                    {SIM_WAITALL, 0, 0, 0, 0}};
    sim_path p = simple();
    p.byte_ns[SIM_DOWN] = 8;
    sim_model m = model_of(p);
    CHECK(RUN(3, ops, m) == SIM_OK);
    /* One message alone takes 1000 + 1000 + 8000 + 500 + 8000 + 1000 + 1000; the second follows on the wire down. */
    CHECK(near(ends[2], 20500 + 8000));
}

/* Three frames from each of two senders: the port serves them in turns, so the first message ends with frame 5. */
static void senders_share_a_port_by_frames(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 1, 2, 3};
    sim_op ops[] = {{SIM_SEND, 2, 0, 3000, 0}, {SIM_SEND, 2, 0, 3000, 0}, {SIM_RECV, 0, 0, 0, 0}};
    sim_path p = simple();
    p.byte_ns[SIM_DOWN] = 8;
    sim_model m = model_of(p);
    CHECK(RUN(3, ops, m) == SIM_OK);
    CHECK(near(ends[2], 10500 + 5 * 8000 + 1000 + 1000));
}

/* One frame in the window: the sender's call ends when the second acknowledgement is here. */
static void window_holds_the_sender(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 1, 2};
    sim_op ops[] = {{SIM_SEND, 1, 0, 3000, 0}, {SIM_RECV, 0, 0, 0, 0}};
    sim_path p = simple();
    p.window = 1;
    p.ack_ns = 700;
    sim_model m = model_of(p);
    CHECK(RUN(2, ops, m) == SIM_OK);
    CHECK(near(ends[0], 1000 + 2 * (1000 + 8000 + 1000 + 500 + 700)));
    CHECK(near(ends[1], sim_message_ns(&p, 3000)));
}

/* A message that comes while its receiver waits for another one is taken then. Only its match remains. */
static void waiting_rank_takes_messages(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 1, 3, 5};
    sim_op ops[] = {{SIM_SEND, 2, 0, 0, 0},
                    {SIM_COMPUTE, 0, 0, 0, 50000},
                    {SIM_SEND, 2, 0, 0, 0},
                    {SIM_RECV, 1, 0, 0, 0},
                    {SIM_RECV, 0, 0, 0, 0}};
    sim_path p = simple();
    p.match_ns = 300;
    sim_model m = model_of(p);
    CHECK(RUN(3, ops, m) == SIM_OK);
    CHECK(near(ends[2], 50000 + 2500 + 300));
}

static void rdma_write_needs_no_receive(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 1, 3};
    sim_op ops[] = {{SIM_WRITE, 1, 3, 8, 0}, {SIM_COMPUTE, 0, 0, 0, 90000}, {SIM_AWAIT, 0, 3, 0, 0}};
    sim_model m = model_of(simple());
    CHECK(RUN(2, ops, m) == SIM_OK);
    CHECK(near(ends[0], 1000));
    CHECK(near(ends[1], 91000)); /* the data was there */
    CHECK(near(waits[1], 0));
}

static void bad_schedules(void)
{
    double ends[4], waits[4];
    sim_result result;
    const int64_t first[] = {0, 1, 2};
    sim_op stuck[] = {{SIM_RECV, 1, 0, 0, 0}, {SIM_RECV, 0, 0, 0, 0}};
    sim_op invalid[] = {{SIM_COMPUTE, 0, 0, 0, 5}, {SIM_SEND, 2, 0, 1, 0}};
    sim_model m = model_of(simple());
    CHECK(RUN(2, stuck, m) == SIM_DEADLOCK);
    CHECK(result.rank == 0 && result.op == 0);
    CHECK(RUN(2, invalid, m) == SIM_INVALID);
    CHECK(result.rank == 1 && result.op == 0);
}

int main(void)
{
    check_deadline(60);
    one_message();
    ping_pong_agrees_with_one_message();
    rendezvous_waits_for_the_receiver();
    receivers_port_queues();
    senders_share_a_port_by_frames();
    window_holds_the_sender();
    waiting_rank_takes_messages();
    rdma_write_needs_no_receive();
    bad_schedules();
    return 0;
}
