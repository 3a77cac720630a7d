from viakit.apps import sor

problem = sor.problem("256x512", iterations=20, init="nonzero")
outcome = sor.serial(problem)  # sor.parallel(viakit.world(), problem) on several ranks
assert all(one.ok for one in sor.verify(problem, outcome))
