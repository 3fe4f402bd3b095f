"""XIDs."""
