"""The world of a stressor child: the one place where torch may be imported.

The supervisor imports this package and ``entry`` to name the function that a child runs, and
``loading`` to read a configuration. Neither of them imports torch, a plugin or another module of
this package that does, until a function of theirs is called in the child.
"""
