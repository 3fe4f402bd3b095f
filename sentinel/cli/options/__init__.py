"""Options that several commands share, and the values that a shell completes."""
