"""Commands that need no daemon."""
