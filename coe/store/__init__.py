"""Experts at rest: weights and blobs on disk, their manifests, and the kinds that can run them."""
