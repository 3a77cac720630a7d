# FT: the fast Fourier transform of three dimensions.
