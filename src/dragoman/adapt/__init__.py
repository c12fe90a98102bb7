"""Adaptation of a model to a corpus: a smaller vocabulary, fewer layers, and the stages of `dragoman adapt`."""
