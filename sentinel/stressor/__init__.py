"""The child process on one GPU: the one place where torch may be imported.

The supervisor imports ``main`` and the diagnostics import ``describe``, to name the function that
a child runs. Neither imports torch or a plugin before that function is called in the child.
"""
