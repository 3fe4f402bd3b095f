"""The process that talks to the world: HTTP over sockets on one side, the supervisor on the other.

It knows nothing but what the supervisor shows it, and changes nothing but by asking the supervisor.
"""
