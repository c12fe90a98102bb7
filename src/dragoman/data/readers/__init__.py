"""Readers of training data other than parallel text."""
