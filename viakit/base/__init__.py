"""Small things that every room uses: words for numbers, limits, types, and texts of faults."""
