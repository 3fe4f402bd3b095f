"""Run one workload on one GPU and check that it follows the rules for workloads."""
