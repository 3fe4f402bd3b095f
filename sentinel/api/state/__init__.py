"""What the API process knows of the supervisor."""
