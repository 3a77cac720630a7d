from viakit.lab.ranks import Ranks

if __name__ == "__main__":
    with Ranks(2) as ranks:
        print(ranks.run("comm.allreduce(rank + 1)"))  # ['3', '3']
