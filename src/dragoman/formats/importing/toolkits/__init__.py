"""Transformer checkpoints of other toolkits."""
