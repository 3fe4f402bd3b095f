"""Sentinel keeps idle NVIDIA GPUs busy and gives each back the instant somebody else needs it."""

__version__ = "0.1.0"

__all__ = ["__version__"]
