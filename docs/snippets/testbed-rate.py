from viakit.testbed import Testbed

if __name__ == "__main__":
    with Testbed(hosts=3, mtu=9000, rate="1gbit", burst=20_000) as testbed:
        for qdisc in testbed.describe()["switch"]["qdiscs"]:
            if qdisc["kind"] == "tbf":
                print(qdisc["interface"], qdisc["rate_bps"], "bit/s,", qdisc["drops"], "drops")
