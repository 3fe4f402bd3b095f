"""The history in SQLite: readings, events and usage."""
