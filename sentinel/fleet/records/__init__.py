"""The files of a fleet run on a shared disk: what is run, how far each node is, its report."""
