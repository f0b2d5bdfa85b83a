"""Which expert is loaded while an executor runs? One file a policy; the file name is the policy's name."""
