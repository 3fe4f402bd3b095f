"""What clients can ask for, one file for each kind of it."""
