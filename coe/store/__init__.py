"""Experts at rest: weights and blobs on disk, what is known of them, and the kinds that can run them."""
