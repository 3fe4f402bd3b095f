"""The unit of a stressor's work, as trials and the terminal judge it."""

#: The longest time of work between two calls of ``pace``, in seconds: a stop waits for it.
MAX_QUANTUM_S = 0.05
