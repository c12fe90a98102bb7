"""Training: tasks, trainer, loss, optimizer, checkpoints."""
