"""Commands for a burn-in of many hosts."""
