"""Triton kernels of training steps on a GPU: attention of short sentences, dropout with residual and norm, the loss.

PyTorch on a GPU is made for long sequences: its attention computes tiles of 64 x 128 positions where a sentence has
14, and dropout, sum and norm are passes of their own.  The formulas in `nn/attention.py` and `nn/layers.py` are the
twins of these kernels; the tests compare them on a CPU, where the interpreter of Triton runs the kernels
(tests/parity/test_cuda_kernels.py).
"""
