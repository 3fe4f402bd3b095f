"""What the host can see of its GPUs, and the process that looks."""
