"""Files and folders: where those of a daemon are, and how to open them safely."""
