"""Advice on data, settings and sizes before training: `dragoman doctor` and `dragoman new`."""
