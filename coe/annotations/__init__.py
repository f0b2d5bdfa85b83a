"""Boxes that people drew in other programs, or masks, as a data set that detectors learn from."""
