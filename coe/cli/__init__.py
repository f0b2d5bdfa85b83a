"""The commands: thin, they read options, call the framework and show what it says."""
