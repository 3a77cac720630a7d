from viakit.apps import ep, harness

run = harness.run(ep.APPLICATION, ep.problem(class_="S"))
print(run.wall_s, run.ok, [str(check) for check in run.checks])
