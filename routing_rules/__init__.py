"""The board files that ship; found by `coe.rules.find` wherever the package is installed."""
