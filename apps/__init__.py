"""Five parallel applications on top of the communicator, from the paper on VIA under MPI libraries.

================  ==================================================================================================
``sor``           red-black Gauss-Seidel on a grid; sends one row to each neighbour per half-sweep
``ep``            the NAS benchmark EP: no communication but one sum
``is_``           the NAS benchmark IS: ranking integers
``fft``           the NAS benchmark FT: a transpose per Fourier transform
``water``         SPLASH's Water: forces between all pairs of molecules within a cutoff
================  ==================================================================================================

Each file can be read from top to bottom: the problem, the serial program, the parallel program, and the expected
results. ``python -m viakit.apps.sor --help`` runs one.
"""
