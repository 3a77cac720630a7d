"""Sample a Gaussian with emcee on the workers of schwimmbad's MPIPool; the result depends on the seed only."""

import emcee
import numpy as np
import schwimmbad


def log_density(x):
    """Return the logarithm of the density at a point."""
    return -0.5 * float(np.sum(x**2))


with schwimmbad.choose_pool(mpi=True) as pool:
    start = np.random.default_rng(1).normal(size=(16, 3))
    sampler = emcee.EnsembleSampler(16, 3, log_density, pool=pool)
    sampler.random_state = np.random.RandomState(2).get_state()
    sampler.run_mcmc(start, 50)
    chain = sampler.get_chain(flat=True)
    print(f"mean {chain.mean(axis=0).round(12).tolist()}, accepted {sampler.acceptance_fraction.mean():.6f}")
