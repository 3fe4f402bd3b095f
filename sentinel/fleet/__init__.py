"""A burn-in of many hosts: each runs its own, and files on a shared disk join them."""
