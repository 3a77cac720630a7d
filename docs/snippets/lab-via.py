from viakit import lab

lab.via(b"hello")  # or operation="rdma_write"
