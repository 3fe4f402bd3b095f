"""The built-in workloads, registered as entry points in ``sentinel.workloads``."""
