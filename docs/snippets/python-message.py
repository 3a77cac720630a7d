import threading

from viakit import via

with via.Nic("loop:example") as nic, nic.create_region(128, rdma_write=True) as memory:
    level = via.Reliability.RELIABLE_RECEPTION  # a send completes when the message is in the peer's memory
    server, client = nic.create_vi(level, rdma_write=True), nic.create_vi(level)
    server.post_recv(via.Descriptor.recv(memory[64:]))
    asking = threading.Thread(target=lambda: client.connect(nic.address / "desk", retry=True))
    asking.start()
    nic.connect_wait("desk", timeout_s=10).accept(server)
    asking.join()

    client.send(b"hello", immediate=7, timeout_s=10)  # registers the bytes for this one message
    received = server.recv_wait(timeout_s=10)
    assert bytes(memory[64:][: received.length]) == b"hello"
    assert received.immediate == 7

    put = via.Descriptor.rdma_write(memory[64:69], memory.address, memory.handle)
    client.post_send(put)  # straight into memory, without a notification
    assert client.send_wait(timeout_s=10) is put
    assert bytes(memory[:5]) == b"hello"
