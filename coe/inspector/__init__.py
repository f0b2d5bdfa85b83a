"""A running line: its settings, memory and devices, and the public `Inspector`."""
