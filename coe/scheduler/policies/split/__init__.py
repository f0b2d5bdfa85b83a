"""How many stages of a group run now? One file a policy; the file name is the policy's name."""
