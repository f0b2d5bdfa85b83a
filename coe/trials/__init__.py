"""Runs of a line, measured on this machine or simulated, as rows of figures that can be compared."""
