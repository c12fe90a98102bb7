// Prints checksums of results of the kernels of training, which must be equal for all builds.
#include <cmath>
#include <cstdint>
#include <cstdio>
#include <vector>

#include "checksums.h"
#include "kernels.h"

namespace {

std::vector<uint8_t> bytes(size_t count) {
  std::vector<uint8_t> found(count);
  for (uint8_t& x : found) x = static_cast<uint8_t>(next_bits() >> 8);
  return found;
}

struct Sizes {
  int64_t m, n, k;
};

void products() {
  for (const Sizes s : {Sizes{1, 1, 1}, Sizes{13, 33, 7}, Sizes{200, 70, 600}, Sizes{6, 16, 8}, Sizes{25, 530, 40}}) {
    const std::vector<float> a = numbers(s.m * s.k, 1), b = numbers(s.k * s.n, 1), bias = numbers(s.n, 1);
    for (int kind = 0; kind < 4; ++kind) {
      const bool a_by_columns = kind & 1, b_by_columns = kind & 2;
      const int64_t sizes[] = {s.m, s.n, s.k}, strides[] = {a_by_columns ? 1 : s.k, a_by_columns ? s.m : 1,
                                                            b_by_columns ? 1 : s.n, b_by_columns ? s.k : 1, s.n};
      std::vector<float> c = numbers(s.m * s.n, 1);
      dragoman_multiply(1, sizes, strides, a.data(), b.data(), kind == 3 ? nullptr : bias.data(), kind == 2, c.data());
      print("product", c);
    }
  }
}

void rows(int64_t count, int64_t columns) {
  const int64_t size = count * columns, words = (columns + 15) / 16;
  const std::vector<float> residual = numbers(size, 2), weight = numbers(columns, 3), bias = numbers(columns, 1);
  std::vector<float> x = numbers(size, 1), out(size), inverse(count), grad_x(size), grad(size), sums(2 * columns);
  x[0] = NAN;
  if (size > 1) x[size - 1] = -INFINITY;
  const std::vector<uint8_t> random = bytes(size);
  std::vector<uint16_t> kept(count * words);
  dragoman_drop(1, size, random.data(), 40, 1.2f, x.data(), residual.data(), out.data());
  print("drop", out);
  dragoman_drop(1, size, random.data(), 200, 4.5f, x.data(), nullptr, out.data());
  print("drop", out);
  std::vector<float> y = x;
  dragoman_add_bias_relu(1, count, columns, bias.data(), y.data(), kept.data());
  print("relu", y);
  print("relu", kept);
  y = residual;
  dragoman_relu_backward(1, count, columns, kept.data(), y.data(), sums.data());
  print("relu", y);
  print("relu", sums);
  x[0] = x[size - 1] = 0.5f;
  for (const uint8_t* drawn : {random.data(), static_cast<const uint8_t*>(nullptr)}) {
    uint16_t* bits = drawn == nullptr ? nullptr : kept.data();
    dragoman_add_and_norm(1, count, columns, 26, 1.1f, drawn, x.data(), residual.data(), weight.data(), bias.data(),
                          1e-5f, bits, inverse.data(), out.data());
    print("norm", out);
    print("norm", inverse);
    dragoman_add_and_norm_backward(1, count, columns, 1.1f, bits, out.data(), weight.data(), bias.data(),
                                   inverse.data(), residual.data(), grad.data(), grad_x.data(), sums.data());
    print("norm", grad);
    print("norm", grad_x);
    print("norm", sums);
  }
  std::vector<int64_t> targets(count);
  for (int64_t& target : targets) target = next_bits() % columns;
  y = numbers(size, 60);
  double losses[2] = {0, 0};
  dragoman_smoothed_loss(1, count, columns, y.data(), targets.data(), 0.1, losses);
  print("loss", y);
  for (const double loss : losses) std::printf("loss %.9f\n", loss);  // the logarithm is that of a library
}

// sizes: N, H, Hkv, Tq, Tk, Dk, Dh.
void attention(const std::vector<int64_t>& sizes) {
  const int64_t n = sizes[0], h = sizes[1], hkv = sizes[2], tq = sizes[3], tk = sizes[4], dk = sizes[5], dh = sizes[6];
  const std::vector<float> q = numbers(n * h * tq * dk, 3), k = numbers(n * hkv * tk * dk, 3);
  const std::vector<float> v = numbers(n * hkv * tk * dh, 1), grad = numbers(n * h * tq * dh, 1);
  std::vector<float> bias = numbers(n * h * tq * tk, 1), weights(bias.size()), out(grad.size());
  for (size_t i = 0; i < bias.size(); i += 3) bias[i] = i % tk == 0 ? 0 : -INFINITY;
  std::vector<int64_t> strides;
  const auto add = [&](int64_t heads, int64_t t, int64_t d) { strides.insert(strides.end(), {heads * t * d, t * d, d}); };
  add(h, tq, dk), add(hkv, tk, dk), add(hkv, tk, dh), add(h, tq, tk), add(h, tq, dh);
  dragoman_attend(1, sizes.data(), strides.data(), q.data(), k.data(), v.data(), bias.data(), weights.data(),
                  out.data());
  print("attention", weights);
  print("attention", out);
  std::vector<float> grad_q(q.size()), grad_k(k.size()), grad_v(v.size());
  strides.resize(9);
  add(h, tq, dh), add(h, tq, dk), add(hkv, tk, dk), add(hkv, tk, dh);
  dragoman_attend_backward(1, sizes.data(), strides.data(), q.data(), k.data(), v.data(), weights.data(), grad.data(),
                           grad_q.data(), grad_k.data(), grad_v.data());
  print("attention", grad_q);
  print("attention", grad_k);
  print("attention", grad_v);
}

}  // namespace

int main() {
  products();
  for (const int64_t columns : {1, 7, 8, 16, 23, 64, 129}) rows(35, columns);
  attention({2, 4, 2, 5, 7, 8, 8});
  attention({1, 2, 2, 17, 33, 16, 24});
  attention({3, 1, 1, 1, 16, 32, 32});
}
