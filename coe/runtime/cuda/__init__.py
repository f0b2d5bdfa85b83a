"""A GPU as a device: all that is asked of one goes through `driver`, so that everything else runs without."""
