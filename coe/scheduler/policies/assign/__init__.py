"""Which executor's backlog takes a stage? One file a policy; the file name is the policy's name."""
