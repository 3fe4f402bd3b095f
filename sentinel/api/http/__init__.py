"""One connection: limits, access and errors."""
