"""Judge the health of GPUs: checks of counters, events of the driver and burn-in plans."""
