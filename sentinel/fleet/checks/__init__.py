"""The judging of a fleet: groups of equal GPUs, checks among them, outliers and the verdict."""
