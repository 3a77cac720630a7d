"""Folder for ``sys.path`` whose package ``mpi4py`` is viakit: ``import mpi4py`` then gives :mod:`viakit.mpi`.

``viakit run --as-mpi4py`` puts `FOLDER` ahead of the installed packages, so a program that imports mpi4py needs no
change.
"""

from pathlib import Path

FOLDER = str(Path(__file__).parent)  # an entry for sys.path or PYTHONPATH
