"""The same decisions in virtual time: a simulator, its workloads and its boxes."""
