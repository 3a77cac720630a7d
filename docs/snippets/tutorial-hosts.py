import time

from viakit import via
from viakit.testbed import Testbed

TURNS = 1_000


def player(serves):
    """Run on one of the hosts: a ping-pong over its Ethernet interface. Returns the time of one way, microseconds."""
    with via.Nic("eth:eth0") as nic, nic.create_region(128) as memory, nic.create_vi() as vi:
        ball, catch = memory[:64], via.Descriptor.recv(memory[64:])
        vi.post_recv(catch)
        if serves:
            vi.connect(nic.resolve("h1", "table 1"), timeout_s=10, retry=True)
        else:
            nic.connect_wait("table 1", timeout_s=10).accept(vi)
        begin = time.perf_counter()
        for turn in range(2 * TURNS):
            if (turn % 2 == 0) == serves:
                vi.send(ball, timeout_s=10)
            else:
                vi.spin_recv(timeout_s=10)
                vi.post_recv(catch)
        return (time.perf_counter() - begin) / TURNS / 2 * 1e6


if __name__ == "__main__":
    with Testbed(hosts=2) as testbed:
        one, other = testbed.hosts
        answering = other.submit(player, False)
        print(f"one way: {one.call(player, True):.2f} µs, half the round trip")
        answering.result()
