#include <cmath>
#include <memory>

#include "kernels.h"
#include "vector_math.h"

using namespace dragoman;

namespace {

struct RowLoss {
  double smoothed, nll;
};

RowLoss one_row(int64_t vocab, float* row, int64_t target, double smoothing) {
  Vec highest = all(-INFINITY), total = all(0);
  for (int64_t i = 0; i < vocab; i += 16) {
    const Lanes lanes = first_lanes(vocab - i);
    highest = max(highest, load(row + i, lanes, -INFINITY));
    total = total + load(row + i, lanes);
  }
  const float peak = reduce_max(highest), logit = row[target];
  Vec sum = all(0);
  for (int64_t i = 0; i < vocab; i += 16) {
    const Lanes lanes = first_lanes(vocab - i);
    const Vec x = exp(load(row + i, lanes, -INFINITY) - all(peak));
    __builtin_prefetch(row + vocab + i, 0, 2);  // the next row arrives while this one is computed
    store(row + i, x, lanes);
    sum = sum + x;
  }
  const double partition = precise_sum(sum), log_partition = peak + std::log(partition);
  const Vec inverse = all(static_cast<float>(1 / partition));
  const Vec share = all(static_cast<float>(smoothing / -static_cast<double>(vocab)));
  for (int64_t i = 0; i < vocab; i += 16) {
    const Lanes lanes = first_lanes(vocab - i);
    store(row + i, fmadd(load(row + i, lanes), inverse, share), lanes);
  }
  row[target] -= static_cast<float>(1 - smoothing);
  const double nll = log_partition - logit, mean = precise_sum(total) / static_cast<double>(vocab) - log_partition;
  return {(1 - smoothing) * nll - smoothing * mean, nll};
}

}  // namespace

void dragoman_smoothed_loss(int threads, int64_t rows, int64_t vocab, float* logits, const int64_t* targets,
                            double smoothing, double* sums) {
  const auto losses = std::make_unique<RowLoss[]>(rows);
#pragma omp parallel for num_threads(threads) schedule(static)
  for (int64_t i = 0; i < rows; ++i) losses[i] = one_row(vocab, logits + i * vocab, targets[i], smoothing);
  for (int64_t i = 0; i < rows; ++i) {  // in this order for any number of threads
    sums[0] += losses[i].smoothed;
    sums[1] += losses[i].nll;
  }
}
