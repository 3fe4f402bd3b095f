"""What is decided over all GPUs and about the processes beside the supervisor."""
