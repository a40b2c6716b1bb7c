"""`fusionray doctor`: what is wrong with a machine, or a cluster, before hours of work start on it."""
