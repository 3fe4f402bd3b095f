"""Processes: what /proc says of others, and the setup and limits of Sentinel's own."""
