"""Notifications: selected events to a webhook and to a program."""
