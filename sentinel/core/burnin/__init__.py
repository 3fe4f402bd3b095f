"""What the occupier knows of burn-ins; the rest of the core asks ``interface`` and ``settings``."""
