"""Tools that run a real supervisor or inspect the host once."""
