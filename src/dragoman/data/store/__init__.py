"""Prepared parallel text on disk."""
