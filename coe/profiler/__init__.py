"""What `coe-profile` does: measure a machine once, and find the configuration that suits a board on it."""
