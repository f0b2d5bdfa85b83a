"""Clusters in virtual time."""
