"""Import of public checkpoints: one module per family, and the code that all families share."""
