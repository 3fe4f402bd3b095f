"""Where events and the output of children are written: files and the system journal."""
