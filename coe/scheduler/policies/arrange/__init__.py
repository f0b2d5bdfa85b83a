"""Where in the backlog does a stage go? One file a policy; the file name is the policy's name."""
