"""Which group does an idle executor take? One file a policy; the file name is the policy's name."""
