"""Shared parts of the tests: fakes, hosts and processes."""
