"""What does one workload do on one GPU, and does it keep to what a workload must."""
