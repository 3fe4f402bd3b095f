"""Everything that calls NVML."""
