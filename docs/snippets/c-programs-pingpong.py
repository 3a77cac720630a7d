from viakit import via

with via.Nic("shm") as nic, nic.create_region(128) as room:
    vi = nic.create_vi(via.Reliability.RELIABLE_DELIVERY, max_transfer_size=32768)
    catch = via.Descriptor.recv(room[64:])
    vi.post_recv(catch)
    vi.connect(nic.resolve("localhost", b"table 1\0"), timeout_s=10, retry=True)
    left = 199
    while True:
        vi.send(room[:64], immediate=left, timeout_s=10)
        left = vi.recv_wait(timeout_s=10).immediate
        if left == 0:
            break
        vi.post_recv(catch)
        left -= 1
