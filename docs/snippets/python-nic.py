import numpy as np

from viakit import via

with via.Nic("loop") as nic:  # or "shm", "shm:NAME", "eth:eth0", "udp:10.0.0.1"
    print(nic.info.link, nic.attributes.max_transfer_size)
    field = np.zeros((100, 100))
    region = nic.register(field, rdma_write=True)  # pinned; field cannot be resized meanwhile
    assert np.shares_memory(np.asarray(region), field)
    region.close()
