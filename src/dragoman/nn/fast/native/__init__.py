"""C++ kernels of training steps on x86-64 processors."""
