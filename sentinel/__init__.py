"""Sentinel keeps idle NVIDIA GPUs busy and gives each back the instant somebody else needs it."""
