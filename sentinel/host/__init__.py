"""The operating system as Sentinel uses it: files, processes, logs, stores, daemons and GPUs."""
