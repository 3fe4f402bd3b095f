"""The result of ``sentinel check`` for Nagios, for node-problem-detector and as JSON."""
