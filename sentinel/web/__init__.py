"""The scripts, the style sheet and the templates of the live page and of the reports."""
