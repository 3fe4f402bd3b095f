"""Check whether this host is safe for sentinel.

``driver_inspection`` and ``host_inspection`` gather facts; the other modules are pure and judge
them.
"""
