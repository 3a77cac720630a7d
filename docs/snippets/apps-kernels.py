from viakit import _kernels

print(_kernels.level(), "of", _kernels.levels())
_kernels.set_level("portable")  # for this process: to compare
