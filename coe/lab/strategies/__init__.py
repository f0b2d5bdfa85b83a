"""Strategies of other systems, each found by its entry point as a user's is (docs/strategies.md)."""
