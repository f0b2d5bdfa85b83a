"""The command `coe-bench`."""
