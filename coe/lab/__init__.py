"""Measured and simulated runs as rows of one table: what `coe-bench` reports."""
