"""`fusionray plan`: what a training and its service need on more machines, from what one machine measured."""
