"""What sentinel promises about handing GPUs over, measured on real ones; see README.md."""
