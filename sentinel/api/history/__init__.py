"""What happened on the GPUs before: readings, events, and who used which one when, in a file."""
