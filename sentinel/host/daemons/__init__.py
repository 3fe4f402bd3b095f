"""The daemons of this host: their records, how a command finds one, and the locks of their GPUs."""
