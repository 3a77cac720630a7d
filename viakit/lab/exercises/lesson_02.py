"""Exercises of lesson 2, A VI from the inside."""

from __future__ import annotations

from viakit import via
from viakit.errors import CompletionError
from viakit.lab.exercises.common import connected, joined
from viakit.lab.tutor import Exercise, Names, Wrong, number_of

__all__ = ["EXERCISES"]


def _put(names: Names) -> str:
    nic = names.nic  # an answer may poll it by its name in the notebook
    # A wrong answer breaks the connection or leaves a completion, so each attempt has a connection of its own.
    with nic.create_region(4096, rdma_write=True) as memory, joined(nic, rdma_write=True) as (client, _):
        before = nic.counters
        try:
            names.put(client, memory)
        except CompletionError:
            raise Wrong(
                "the peer refused the request and ended the connection; "
                "an RDMA write there needs memory.handle, and an address that counts from memory.address"
            ) from None
        spent = nic.counters - before
        written = bytes(memory[3500:3506])
    if spent["rdma_writes_sent"] != 1:
        raise Wrong(f"{spent['rdma_writes_sent']} RDMA writes were sent; expected one")
    if spent["messages_sent"] != 1:
        raise Wrong("a message was sent, too; the bytes should travel by the RDMA write alone")
    if written != b"viakit":
        raise Wrong(f"when put() returned, offset 3500 had {written!r}; expected b'viakit'")
    return "One write, and no receive."


def _queue(names: Names) -> str:
    with connected("queue") as (_, memory, client, server):
        for i in range(5):
            server.post_recv(via.Descriptor.recv(memory[32 * i : 32 * i + 32]))
        for _ in range(3):
            client.send(b"0123456789", timeout_s=10)
        for _ in range(2):
            server.recv_wait(timeout_s=10)
        waiting = 0
        while server.recv_done() is not None:
            waiting += 1
        can_arrive = server.n_recvs_posted
    given = (number_of(names, "can_arrive"), number_of(names, "waiting"))
    if given[0] != can_arrive:
        raise Wrong(f"can_arrive = {given[0]:g}: each arrived message used one of the five receives, taken or not")
    if given[1] != waiting:
        raise Wrong(f"waiting = {given[1]:g}: a completed receive stays in the queue until the program takes it")
    return "The check ran this program: a message uses a descriptor when it arrives, and the program takes it later."


def _gathered(names: Names) -> str:
    gathered, memory, nic = names.gathered, names.memory, names.nic
    if not isinstance(gathered, via.Descriptor):
        raise Wrong(f"gathered is {gathered!r}; expected a descriptor, made by via.Descriptor.send")
    memoryview(memory)[:32] = bytes(range(97, 129))  # all different, so that other pieces are another message
    with joined(nic) as (client, server):  # a connection of its own, because an earlier attempt may have broken one
        server.post_recv(via.Descriptor.recv(memory[2048:4096]))
        before = nic.counters
        client.post_send(gathered)
        client.send_wait(timeout_s=10)
        if (nic.counters - before)["messages_sent"] != 1:
            raise Wrong("expected exactly one message")
        try:
            length = server.recv_wait(timeout_s=1).length
        except (TimeoutError, CompletionError):
            raise Wrong("no message arrived that fits into the 2048 bytes of the receive") from None
    parts = b"".join(bytes(memory[i : i + 2]) for i in (0, 10, 20))
    if bytes(memory[2048 : 2048 + length]) != parts:
        raise Wrong(f"the message was {bytes(memory[2048 : 2048 + length])!r}; expected {parts!r}")
    return "Three pieces, one message."


EXERCISES = (
    Exercise(
        ("put",),
        _put,
        (
            "The bytes must first lie in registered memory: write them somewhere in the region.",
            "via.Descriptor.rdma_write takes the local piece, the remote address and the remote handle.",
            "Post the descriptor with post_send, and take it back with send_wait.",
        ),
        """
def put(client, memory):
    memoryview(memory)[600:606] = b"viakit"
    client.post_send(via.Descriptor.rdma_write(memory[600:606], memory.address + 3500, memory.handle))
    client.send_wait(timeout_s=10)
    while bytes(memory[3500:3506]) != b"viakit":
        client.nic.poll()
""",
    ),
    Exercise(
        ("can_arrive", "waiting"),
        _queue,
        ("Each message uses one posted receive when it arrives.", "Taking a completion from the queue posts nothing."),
        "can_arrive, waiting = 5 - 3, 3 - 2",
    ),
    Exercise(
        ("gathered",),
        _gathered,
        ("The constructor is via.Descriptor.send.", "It takes one piece of memory, or a list of pieces."),
        "gathered = via.Descriptor.send([memory[0:2], memory[10:12], memory[20:22]])",
    ),
)
