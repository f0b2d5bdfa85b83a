"""Boards to inspect: board files, their routing rules, and pictures of components."""
