from viakit import via

with via.Nic("loop") as nic, nic.tap("frames.pcapng"), nic.create_vi() as one, nic.create_vi() as other:
    one.request_peer(nic.address / "other", local="one", timeout_s=10)  # every frame from here on is in the file
    other.connect_peer(nic.address / "one", local="other", timeout_s=10)
