"""Messages between the processes, and their codec."""
