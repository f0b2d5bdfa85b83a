"""The kinds of expert that ship with the framework; a user's own kind may live anywhere."""
