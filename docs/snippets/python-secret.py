import secrets

from viakit import via

key = secrets.token_bytes(32)  # 16 to 32 bytes; the other side gets them by a way that only the two can read

with via.Nic("loop:secret") as nic, nic.create_vi(secret=key) as one, nic.create_vi(secret=key) as other:
    one.request_peer(nic.address / "other", local="one", timeout_s=10)
    other.connect_peer(nic.address / "one", local="other", timeout_s=10)
    while one.peer_done() is None:
        pass
    assert one.state is via.ViState.CONNECTED
    assert one.secret is True  # the bytes cannot be read back
    one.disconnect()
    one.secret = None  # an idle VI's secret can be changed, or removed
