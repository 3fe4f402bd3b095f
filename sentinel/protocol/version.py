"""The version of sentinel."""

__version__ = "0.2.0"
