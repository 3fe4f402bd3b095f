"""Verification of what a GPU computes and stores."""
