"""The process that reads GPUs through the driver."""
