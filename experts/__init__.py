"""The kinds of expert that ship with the framework; a user's kind may live anywhere."""
