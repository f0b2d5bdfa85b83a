"""The bound that no order of a workload can beat, and what it is made of (docs/bound.md)."""
