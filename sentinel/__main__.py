"""Entry point of ``python -m sentinel``; light, because every child process imports it."""

import sys


def main() -> int:
    """Run the command line and return its exit code."""
    from sentinel.cli.main import run_command_line

    return run_command_line(sys.argv[1:])


if __name__ == "__main__":
    sys.exit(main())
