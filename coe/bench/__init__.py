"""Measured and simulated runs as rows of one table: what `coe-bench` reports."""

from coe.surroundings import quiet_matplotlib

quiet_matplotlib()  # before any module here imports it
