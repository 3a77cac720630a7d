from viakit import via

with via.Nic("loop") as nic:
    before = nic.counters
    nic.poll()
    print((nic.counters - before).nonzero(), via.counters_help["polls"])
assert not any(via.live_objects().values())
