"""Tensors in, tensors out: attention, layers, positions, recurrent and convolutional parts.  Imports only `errors`."""
