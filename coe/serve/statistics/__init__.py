"""Figures of a line from counts of its history. Pure functions; each figure carries its definition and bounds."""
