// Label-smoothed cross-entropy and its gradient.
#pragma once

#include <cstdint>

namespace dragoman {

// Replace each row of logits (rows x vocab) by the gradient of its smoothed loss, softmax(row) - target distribution,
// and add to sums the smoothed losses and the negative log-likelihoods of the rows, in nats.
void smoothed_loss(int threads, int64_t rows, int64_t vocab, float* logits, const int64_t* targets, double smoothing,
                   double* sums);

}  // namespace dragoman
