"""Measurements of hand-over, load and cost on real GPUs; see README.md."""
