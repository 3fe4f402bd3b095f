"""Tests of sentinel."""
