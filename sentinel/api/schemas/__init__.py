"""Request and response types of the API."""
