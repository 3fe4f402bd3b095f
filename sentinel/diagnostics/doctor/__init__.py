"""Is this host safe for sentinel? What is looked at, and what follows from it.

``asking`` and ``looking`` gather the facts; the others are pure and judge them.
"""
