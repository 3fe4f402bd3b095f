"""What is decided about one GPU."""
