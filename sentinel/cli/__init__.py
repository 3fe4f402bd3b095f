"""The command line: one file per family of commands, imported when it is used."""
