"""The commands. They are thin: they read options, call the framework and show its results."""
