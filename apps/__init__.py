"""Five parallel applications on top of the communicator, from the paper on VIA under MPI libraries.

================  ==================================================================================================
``sor``           red-black Gauss-Seidel on a grid: a row to each neighbour per half-sweep
``ep``            the NAS benchmark EP: no communication but one sum
``is_``           the NAS benchmark IS: ranking integers
``fft``           the NAS benchmark FT: a transpose per Fourier transform
``water``         SPLASH's Water: forces between all pairs of molecules within a cutoff
================  ==================================================================================================

Each is a file of its own, to be read from top to bottom: the problem, the program of one process, the program of many,
and what its results must be. ``python -m viakit.apps.sor --help`` runs one.
"""
