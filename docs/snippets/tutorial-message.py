from viakit import via

with via.Nic("loop") as nic, nic.create_region(128) as memory, nic.create_vi() as here, nic.create_vi() as there:
    catch = via.Descriptor.recv(memory[64:])  # the destination of a message ...
    there.post_recv(catch)  # ... must be posted before it arrives
    here.request_peer(nic.address / "there", local="here", timeout_s=10)
    there.connect_peer(nic.address / "here", local="there", timeout_s=10)
    while here.peer_done() is None:
        pass

    memoryview(memory)[:5] = b"hello"
    before = nic.counters
    here.post_send(via.Descriptor.send(memory[:5]))  # returns at once: the NIC does the rest
    received = there.recv_wait(timeout_s=10)
    here.send_wait(timeout_s=10)  # the program owns the descriptor and its memory again
    print(bytes(memory[64:][: received.length]), "with", (nic.counters - before)["copies"], "copies")
