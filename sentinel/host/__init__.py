"""What the operating system provides: /proc, paths, locks, files and simulated GPUs."""
