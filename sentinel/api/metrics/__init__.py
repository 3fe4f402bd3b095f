"""What a Prometheus gets of the daemon: metrics of what the supervisor showed and said."""
