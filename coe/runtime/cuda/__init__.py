"""A GPU as a device: all calls to the GPU go through `driver`, so that all other modules run without a GPU."""
