"""What the supervisor decides, and the facts that it decides on: values in, values out."""
