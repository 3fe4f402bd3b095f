"""Prometheus metrics of the supervisor's state and of counted events."""
