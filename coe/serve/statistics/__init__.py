"""Figures of a line from counts of its history. Law: pure functions; each figure carries its definition and bounds."""
