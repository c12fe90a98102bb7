"""Checks of parallel data before training: the full examination of `dragoman doctor`, and a fast subset of it."""
