"""In which variant is an expert loaded? One file a policy; the file name is the policy's name."""
