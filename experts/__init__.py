"""The kinds of expert that ship with the framework. A user's kind may live anywhere.

A kind is a class of `coe.store.kinds`. The framework finds it by an entry point of the group `coe.kinds`
(pyproject.toml), or by its dotted path (docs/plugins.md).
"""
