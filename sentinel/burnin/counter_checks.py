"""The checks of a GPU's counters, as data."""
