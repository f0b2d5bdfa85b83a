"""What others made, brought in: files of weights, and what they say about themselves."""
