"""State that outlives a daemon, each in a file of its own."""
