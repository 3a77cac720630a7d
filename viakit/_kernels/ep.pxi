# EP: pairs of Gaussian deviates.
