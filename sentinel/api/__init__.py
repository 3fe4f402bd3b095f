"""The API process: HTTP for clients on one side, the supervisor's channel on the other.

It publishes only what the supervisor sends, and changes the state only by commands to it.
"""
