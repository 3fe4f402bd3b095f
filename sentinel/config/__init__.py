"""Settings and their sources, schedules, ignore rules and the selection of GPUs."""
