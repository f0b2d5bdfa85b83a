"""Which expert leaves a pool first? One file a policy; the file name is the policy's name."""
