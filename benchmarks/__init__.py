"""Figures, each beside its peer in the same run. `./run bench queue` measures and prints them."""
