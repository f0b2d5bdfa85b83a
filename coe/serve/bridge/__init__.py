"""The bridge: it tells other machines what happens. Law: an event leaves the outbox once its sink acknowledged it.

Each sink has a thread of its own (`courier`), so that no sink waits for another.
"""
