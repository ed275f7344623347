"""More than one GPU: keys dealt to ranks, whose parts merge."""
