"""Commands that talk to a daemon or run one."""
