from rich import print

from viakit import inspect, via

with via.Nic("loop") as nic:
    print(inspect.tables({"pid": 0, "nics": [nic.snapshot()]}))
