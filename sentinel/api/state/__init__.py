"""The supervisor's state as the API process has it."""
