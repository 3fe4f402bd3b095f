"""One frozen Config, where its values come from, and which GPUs are selected."""
