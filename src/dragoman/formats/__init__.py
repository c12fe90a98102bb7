"""Export of models to the formats of other programs and import of public checkpoints, with parity reports."""
