"""The daemon process: its loop, its children and its assembly."""
