from viakit.apps import water

problem = water.problem(216, steps=5, seed=7)
outcome = water.serial(problem)  # water.parallel(viakit.world(), problem) on several ranks
assert all(one.ok for one in water.verify(problem, outcome))
print(outcome.steps[-1].total, outcome.pairs)
