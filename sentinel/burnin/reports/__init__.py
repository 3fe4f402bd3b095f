"""Verdicts, and the report of a run in each of its formats."""
