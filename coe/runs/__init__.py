"""A run: images through a line, results that survive a kill, a folder that fills."""
