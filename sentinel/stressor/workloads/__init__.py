"""The built-in workloads, registered in ``sentinel.workloads`` like anybody else's."""
