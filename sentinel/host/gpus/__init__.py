"""GPUs without NVML: device files, the order of CUDA, and simulated GPUs."""
