"""Slurm: the engine of a fleet run, and what it asks of one node (prolog, epilog, health check)."""
