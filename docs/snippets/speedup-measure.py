from viakit.apps import speedup, speedup_report

document = speedup.measure(["sor-zero"], protocols=["via", "tcp"], ranks=[2], rounds=3, quick=True)
for row in speedup.rows(document):
    print(row.protocol, row.ranks, row.speedup, row.karp_flatt)
speedup_report.figure(document).savefig("sor.png")
