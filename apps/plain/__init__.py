"""The kernels as plain C loops: what one would write first, to read, and to measure the library's kernels beside."""
