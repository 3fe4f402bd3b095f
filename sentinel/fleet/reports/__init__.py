"""The report of a fleet: as text, JSON, JUnit XML and a page."""
