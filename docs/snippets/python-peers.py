from viakit import via

with via.Nic("loop:equals") as nic, nic.create_vi() as one, nic.create_vi() as other:
    one.request_peer(nic.address / "other", local="one", timeout_s=10)  # returns at once ...
    other.connect_peer(nic.address / "one", local="other", timeout_s=10)
    while (attributes := one.peer_done()) is None:  # ... and peer_done() returns the result
        pass
    assert one.state is via.ViState.CONNECTED
    assert attributes.max_transfer_size
