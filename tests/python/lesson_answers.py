"""Answers that the checks of the lessons must refuse: wrong ones and lazy ones (a constant, a short cut).

By lesson and exercise: pairs of a source and a part of the verdict, which must say what is wrong.
"""

SEND = """
def send_two(client, server, memory):
    server.post_recv(via.Descriptor.recv(memory[:64]))
    server.post_recv(via.Descriptor.recv(memory[64:128]))
    client.send(b"one", timeout_s=10)
    client.send(b"two", timeout_s=10)
    server.recv_wait(timeout_s=10), server.recv_wait(timeout_s=10)
    return [b"one"]
"""

DISSEMINATION = """
def barrier():
    step = 1
    while step < size:
        comm.sendrecv(None, dest=(rank + step) % size, source=(rank - step) % size)
        step *= 2
"""

EARLY = """
def barrier():                         # four messages, but rank 2 waits for none of the others
    if rank == 2:
        comm.send(None, dest=0)
        comm.send(None, dest=0)
        return
    comm.sendrecv(None, dest=1 - rank, source=1 - rank)
    if rank == 0:
        comm.recv(source=2)
        comm.recv(source=2)
"""

SERIAL = """
def together(n, steps):                # each rank computes the whole bar
    bar = np.zeros(n + 2)
    bar[0] = 100.0
    for _ in range(steps):
        bar[1:-1] = (bar[:-2] + bar[2:]) / 2
    return bar[1 + rank * n // size :][: n // size]
"""

PUT = """
def put(client, memory):
    memoryview(memory)[600:606] = b"viakit"
    client.post_send(via.Descriptor.rdma_write(memory[600:606], {}))
    {}
"""
WAIT = "client.send_wait(timeout_s=10)"

SHIFT = "def shift(win, value):\n    {}"
BACK = "win.Fence()\n    win.Put(value, (rank - 1) % size)\n    win.Fence()"

REFUSED = {
    0: {
        1: [
            ("copies_of_512, copies_of_128k = 1, 1", "copies_of_512 = 1 is too small"),
            ("copies_of_512, copies_of_128k = 2, 2", "copies_of_128k = 2 is too large"),
            ("copies_of_512, copies_of_128k = 'two', 1", "expected a number"),
        ],
        2: [("furthest = 1", "the measured sizes are")],
        3: [
            ("def send_two(client, server, memory):\n    return [b'one', b'two']", "0 messages arrived"),
            (SEND, "it returned [b'one']"),
        ],
    },
    1: {
        1: [
            ("segments = 44", "forgets all headers"),
            ("segments = 45", "without the 12 bytes of time stamps, or if you round down"),
            ("segments = 45.26", "round up"),
            ("segments = 0", "too small"),
        ],
        2: [("calls_ratio = 1", "too small"), ("calls_ratio = 'poll'", "expected a number")],
        3: [
            ("too_small, enough = '64K', '64K'", "is not smaller"),
            ("too_small, enough = 'x', '1M'", "x"),
        ],
    },
    2: {
        1: [
            ("def put(client, memory):\n    memoryview(memory)[3500:3506] = b'viakit'", "0 RDMA writes"),
            (
                "def put(client, memory):\n"
                "    client.post_send(via.Descriptor.rdma_write(memory[:6], memory.address + 3500, memory.handle))\n"
                "    client.send_wait(timeout_s=10)",
                "expected b'viakit'",
            ),
            ("def put(client, memory):\n    client.send(b'viakit')", "0 RDMA writes"),
            (PUT.format("memory.address + 3500, memory.handle + 1", WAIT), "needs memory.handle"),
            (PUT.format("3500, memory.handle", WAIT), "an address that counts from memory.address"),
            (PUT.format("memory.address + 3500, memory.handle", "pass"), "when put() returned, offset 3500 had"),
        ],
        2: [("can_arrive, waiting = 3, 1", "can_arrive = 3"), ("can_arrive, waiting = 2, 0", "waiting = 0")],
        3: [
            ("gathered = [memory[0:2], memory[10:12], memory[20:22]]", "expected a descriptor"),
            ("gathered = via.Descriptor.send(memory[0:6])", "the message was"),
            ("gathered = via.Descriptor.send(memory[0:4096])", "no message arrived that fits"),
        ],
    },
    3: {
        1: [("frames = 11", "11 frames hold 11 x 1440 = 15,840 bytes; round up"), ("frames = 1", "too small")],
        2: [("fewer = 1000000", "too large"), ("fewer = 0", "too small")],
        3: [("times_more = 100", "too large"), ("times_more = 'poll'", "expected a number")],
    },
    4: {
        1: [
            ("best = lambda n: 1500", "times the least time"),
            ("best = lambda n: n", "times the least time"),
            ("best = lambda n: 'large'", "expected a packet size"),
            ("best = lambda n: True", "expected a packet size"),
            ("best = lambda n: float('nan')", "expected a packet size"),
        ],
        2: [
            ("copies_short, copies_long = 0, 0", "too small"),
            ("copies_short, copies_long = 1, 1", "copies of BIP's header"),
            ("copies_short, copies_long = 2, 2", "copies_long = 2"),
            ("copies_short, copies_long = 3, 1", "copies_short = 3 is too large"),
            (
                "copies_short, copies_long = lessons.per_message(result, 'bip-shm', 'bytes_copied', 64) / 64, 9",
                "copies_long = 9",
            ),
        ],
        3: [("times_larger = 4", "too large"), ("times_larger = 1", "too small")],
    },
    5: {
        1: [("eagerly, by_rendezvous = 1, 0", "eagerly = 1"), ("eagerly, by_rendezvous = 2, 1", "by_rendezvous = 1")],
        2: [
            ("trips_of_rendezvous, trips_of_eager = 2, 1", "a trip of their own"),
            ("trips_of_rendezvous, trips_of_eager = 1, 1", "too small"),
        ],
        3: [
            ("policy = 'via,eager_limit=1M'", "goes eagerly"),
            ("policy = 'eager_limit=1M'", "goes eagerly"),
            ("policy = 4096", "expected a text"),
            ("policy = ''", "expected a name and changes"),
            ("policy = 'via, eager_limit=4K'", "without spaces"),
            ("policy = 'fast,eager_limit=4K'", "there is no policy 'fast'"),
            ("policy = 'via,eager=4K'", "policy 'via,eager=4K'"),
            ("policy = 'mpich-p4,eager_limit=4K'", "a policy over tcp; expected one over via"),
        ],
    },
    6: {
        1: [
            ("messages_of_8, steps_of_6 = 12, 4", "counts pairs"),
            ("messages_of_8, steps_of_6 = 24, 3", "steps_of_6 = 3"),
            ("messages_of_8, steps_of_6 = 0, 0", "too small"),
        ],
        2: [
            ("answer = 'def barrier():\\n    pass'", "send 0 messages"),
            ("answer = 'def barrier():\\n    time.sleep(0.2)'", "send 0 messages"),
            ("answer = 'def barrier():\\n    comm.allgather(rank)'", "uses comm.allgather"),
            ("answer = 'def barrier():\\n    comm.allreduce(1)'", "uses comm.allreduce"),
            (f"answer = {DISSEMINATION!r}", "as dissemination does"),
            (f"answer = {EARLY!r}", "does not hold"),
            ("answer = 'def barrier():\\n    comm.Barrier()'", "it calls Barrier()"),
            ("answer = 'pass'", "does not define barrier()"),
        ],
        3: [("times_as_long = 100", "too large"), ("times_as_long = 'rdma'", "expected a number")],
    },
    7: {
        1: [("largest = 'EP'", "another application"), ("largest = 1", "expected 'EP' or")],
        2: [
            ("messages_factor, bytes_factor = 2, 2", "messages_factor = 2"),
            ("messages_factor, bytes_factor = 1, 4", "bytes_factor = 4"),
        ],
        3: [
            ("mended = 'def together(n, steps):\\n    return np.zeros(n // size)'", "differs"),
            ("mended = 'def together(n, steps):\\n    return alone(n, steps)'", "not call alone()"),
            ("mended = '0'", "does not define together"),
            (f"mended = {SERIAL!r}", "a rank sent 0 messages"),
        ],
    },
    8: {
        1: [
            ("lost_frames = lambda: 20", "does not call run"),
            ("lost_frames = lambda: run(via.Reliability.UNRELIABLE, 0.05)[1]['fault_dropped']", "it ran with"),
            ("lost_frames = lambda: len(run(via.Reliability.RELIABLE_DELIVERY, 0.05)[0])", "it returned 400"),
        ],
        2: [("level = via.Reliability.UNRELIABLE", "completes earlier"), ("level = 4", "expected a member")],
        3: [("times_more = 1e6", "too large"), ("times_more = 'go_back_n'", "expected a number")],
    },
    9: {
        1: [("at_least = 5", "2 / 32"), ("at_least = 20", "too large")],
        2: [
            ("mean_ratio, median_ratio = 1, 1", "mean_ratio = 1"),
            ("median_ratio, mean_ratio = np.mean(disturbed) / np.mean(typical), 1", "mean_ratio = 1"),
        ],
        3: [
            ("evidence = lambda low, high: 'no evidence'", "expected 'faster'"),
            ("evidence = lambda low, high: 'faster' if low < 1 else 'slower'", "expected 'no evidence'"),
        ],
    },
    10: {
        1: [("at_least = 2", "too small")],
        2: [("fewer, by = 'mine', 1", "two calls"), ("fewer, by = 'gather', 2", "by = 2")],
        3: [
            ("mended = Path('careless.py').read_text()", "--validate"),
            ("mended = 'pass'", "does not define the class"),
        ],
    },
    11: {
        1: [
            ("copies_of_p4, copies_of_pvm = 0, 2", "copies_of_p4 = 0"),
            ("copies_of_p4, copies_of_pvm = 1, 1", "copies_of_pvm = 1"),
        ],
        2: [
            ("without_copy = 'tcp'", "is not mpich-p4 with a change"),
            ("without_copy = 'mpich-p4,eager_limit=1M'", "still copied"),
            ("without_copy = 'mpich-p4, copy=0'", "without spaces"),
            ("without_copy = 'mpich-p4,copy=0'", "policy 'mpich-p4,copy=0'"),
            ("without_copy = 'mpich-p4,copy_recv=0,eager_limit=1M'", "more than one field"),
        ],
        3: [
            ("never_waits = {'mpich-p4', 'lam-c2c', 'mpi-pro-tuned'}", "lam-c2c sends"),
            ("never_waits = {'mpich-p4'}", "mpi-pro-tuned is missing"),
            ("never_waits = {'pvm'}", "is none of"),
            ("never_waits = 'mpich-p4'", "expected a set"),
        ],
    },
    12: {
        1: [("writes = 12", "those of all ranks"), ("writes = 24576", "counts pairs"), ("writes = 4096", "too small")],
        2: [
            ("barrier_us = lambda n: 36.2", "count the steps"),
            ("barrier_us = lambda n: times_us('barrier-cluster-3', 'rdma')[8] * n / 8", "count the steps"),
            ("barrier_us = lambda n: 'long'", "is no number"),
        ],
        3: [
            ("ratio_of_8, ratio_of_4096 = 1, 1", "ratio_of_8 = 1"),
            ("ratio_of_8, ratio_of_4096 = 1.32, 4", "ratio_of_4096 = 4"),
        ],
    },
    13: {
        1: [
            ("writes, handled = 20, 0", "writes = 20 is too large"),
            ("writes, handled = 10, 10", "handled = 10 is too large"),
            ("writes, handled = 'ten', 0", "expected a number"),
        ],
        2: [
            ("by_target = set()", "Accumulate is missing"),
            ("by_target = {'Put', 'Get', 'Accumulate', 'Compare_and_swap'}", "for 3 calls of Put"),
            ("by_target = {'Accumulate'}", "Compare_and_swap is missing"),
            ("by_target = {'Send'}", "is none of"),
            ("by_target = 'Accumulate'", "expected a set"),
        ],
        3: [
            (f"answer = {SHIFT.format('pass')!r}", "began no RDMA write"),
            ("answer = 'pass'", "does not define shift"),
            (f"answer = {SHIFT.format(BACK)!r}", "the window of rank 0 has 101"),
        ],
    },
}

# Answers beside the solution that the checks must accept, by lesson and exercise.
ACCEPTED = {
    4: {
        1: ["def best(n):\n    return np.int64(min(n, round((n * packet / (fill - byte)) ** 0.5)))"],
        2: ["copies_short, copies_long = 2, 1", "copies_short, copies_long = 2.75, 1"],
    },
    5: {3: ["policy = 'eager_limit=4K'", "policy = 'via,eager_limit=4K'"]},
}
