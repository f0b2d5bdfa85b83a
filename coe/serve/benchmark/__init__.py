"""Measurements of a running service: real processes, real HTTP, real weights. What `coe-bench serve` reports."""
