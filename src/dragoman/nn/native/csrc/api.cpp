// The C interface, called with ctypes by nn/native/kernels.py, which validates all arguments.
#include "loss.h"
#include "matmul.h"

using dragoman::Matrix;

extern "C" {

// sizes: m, n, k.  strides: of the rows and columns of a and b, and of the rows of c, in elements.
void dragoman_multiply(int threads, const int64_t* sizes, const int64_t* strides, const float* a, const float* b,
                       const float* bias, int accumulate, float* c) {
  dragoman::multiply(threads, {sizes[0], sizes[1], sizes[2]}, Matrix{a, strides[0], strides[1]},
                     Matrix{b, strides[2], strides[3]}, bias, accumulate != 0, c, strides[4]);
}

void dragoman_smoothed_loss(int threads, int64_t rows, int64_t vocab, float* logits, const int64_t* targets,
                            double smoothing, double* sums) {
  dragoman::smoothed_loss(threads, rows, vocab, logits, targets, smoothing, sums);
}
}
