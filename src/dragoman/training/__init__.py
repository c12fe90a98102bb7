"""From a configuration and text to a trained model: trainer, loss, schedule, checkpoints."""
