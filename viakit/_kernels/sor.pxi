# SOR: red-black successive over-relaxation.
