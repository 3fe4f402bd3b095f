"""The screen of ``sentinel top``; the only package that imports textual."""

from sentinel.cli.tui.app import Live as Live
