#include "worker.h"

#include <algorithm>
#include <cstring>

namespace dragoman {
namespace {

constexpr double PASS = 8;  // what a number costs that is only looked at, in multiplications of a product

size_t times(int a, int b) { return static_cast<size_t>(a) * static_cast<size_t>(b); }

}  // namespace

Worker::Worker(const Model& model, Team& team)
    : model_(model), h_(model.sizes()), team_(team), group_(h_.n_heads / h_.n_kv_heads), own_(h_.half != 0), memory_(h_.half != 0), within_(h_.half != 0) {}

void Worker::reserve(const std::vector<int>& slots, const std::vector<int>& sources, int listed) {
  const auto longest = [](const std::vector<int>& lengths) { return std::max(1, *std::max_element(lengths.begin(), lengths.end())); };
  own_.reserve(slots, h_.decoder_layers, h_.n_kv_heads, h_.d_head);
  if (h_.encoder_layers > 0) {
    memory_.reserve(sources, h_.decoder_layers, h_.n_kv_heads, h_.d_head);
    within_.reserve({longest(sources)}, 1, h_.n_kv_heads, h_.d_head);
  }
  lengths_.assign(sources.size(), 0);
  longest_ = (std::max(longest(slots), longest(sources)) + LANES - 1) / LANES * LANES;
  scores_.of(times(team_.size(), longest_));
  list_bytes_ = Shortlist::bytes(model_.output, listed);
  lists_.assign(listed == 0 ? 0 : sources.size(), Shortlist());
  list_rooms_.of(lists_.size() * list_bytes_);
}

int64_t Worker::bytes_of(const Model& model, int slots, int target, int source, int listed) {
  const Header& h = model.sizes();
  const auto keys = [&](int length) { return Cache::bytes_of(length, h.decoder_layers, h.n_kv_heads, h.d_head, h.half != 0); };
  return slots * keys(target) + (h.encoder_layers > 0 ? keys(source) : 0) + static_cast<int64_t>(Shortlist::bytes(model.output, listed));
}

const Shortlist* Worker::allow(int place, const int32_t* words, int count) {
  Shortlist& list = lists_[static_cast<size_t>(place)];
  list.gather(model_.output, words, count, list_rooms_.get() + static_cast<size_t>(place) * list_bytes_, team_);
  return &list;
}

size_t Worker::bytes() const {
  return of_rooms(*this, [](const auto&... room) { return (room.bytes() + ...); });
}

size_t Worker::used() const {
  return of_rooms(*this, [](const auto&... room) { return (room.used() + ...); });
}

void Worker::lend() {
  of_rooms(*this, [](auto&... room) { (room.lend(), ...); });
}

// ----------------------------------------------------------------------------------------------- what both stacks use

Inputs Worker::inputs(const Matrix& m, const float* x, int rows) {
  Inputs in;
  in.rows = rows, in.width = m.in, in.floats = x;
  const auto by_rows = [&](const auto& f) {
    team_.share(rows, PASS * rows * m.in, [&](int, int begin, int end) { f(begin, end); });
  };
  if (m.kind == Numbers::int8) {
    uint8_t* bytes = bytes_.of(times(rows, m.in));
    float* scales = scales_.of(static_cast<size_t>(rows));
    by_rows([&](int begin, int end) { quantize(x + times(begin, m.in), end - begin, m.in, bytes + times(begin, m.in), scales + begin); });
    in.bytes = bytes, in.scales = scales;
  } else if (m.kind == Numbers::bfloat16) {
    uint16_t* brains = brains_.of(times(rows, m.in));
    by_rows([&](int begin, int end) { shorten(x + times(begin, m.in), times(end - begin, m.in), brains + times(begin, m.in)); });
    in.brains = brains;
  }
  return in;
}

// y = W x + bias, or y += that; x (rows, m.in), y (rows, m.out).
void Worker::multiply(const Matrix& m, const float* x, int rows, float* y, bool accumulate) {
  const Inputs in = inputs(m, x, rows);
  team_.share(m.out / BLOCK, double{1} * rows * m.out * m.in, [&](int, int begin, int end) { product(m, in, y, m.out, accumulate, begin, end); });
}

void Worker::norm_rows(const Norm& norm, const float* x, float* y, int rows) {
  team_.share(rows, PASS * rows * h_.d_model, [&](int, int begin, int end) {
    for (int r = begin; r < end; ++r) normalise(norm, x + times(r, h_.d_model), y + times(r, h_.d_model), h_.d_model);
  });
}

// x + f(norm(x)) or norm(x + f(x)); f adds what it makes of its input to x.
template <typename F>
void Worker::sublayer(const Norm& norm, int rows, const F& f) {
  float* x = x_.get();
  if (h_.pre_norm != 0) {
    float* normed = normed_.of(times(rows, h_.d_model));
    norm_rows(norm, x, normed, rows);
    return f(normed);
  }
  f(x);
  norm_rows(norm, x, x, rows);
}

void Worker::feed_forward(const Layer& layer, const float* in, int rows) {
  const int width = layer.inner.out;
  float* inner = wide_.of(times(rows, width));
  multiply(layer.inner, in, rows, inner);
  float* hidden = h_.gated != 0 ? hidden_.of(times(rows, h_.d_ff)) : inner;
  team_.share(rows, PASS * rows * h_.d_ff, [&](int, int begin, int end) {
    for (int r = begin; r < end; ++r) {
      const float* row = inner + times(r, width);
      activate(static_cast<Activation>(h_.activation), row, h_.gated != 0 ? row + h_.d_ff : nullptr, hidden + times(r, h_.d_ff), h_.d_ff);
    }
  });
  multiply(layer.outer, hidden, rows, x_.get(), true);
}

void Worker::embed(const Stack& stack, int32_t token, int position, float* x) const {
  const size_t at = times(token, h_.d_model);
  if (h_.half != 0) widen(static_cast<const uint16_t*>(stack.embedding) + at, h_.d_model, x);
  else std::memcpy(x, static_cast<const float*>(stack.embedding) + at, static_cast<size_t>(h_.d_model) * sizeof(float));
  const float* place = stack.positions == nullptr ? nullptr : stack.positions + times(position, h_.d_model);
  for (int i = 0; i < h_.d_model; ++i) x[i] = x[i] * h_.embedding_scale + (place == nullptr ? 0.0f : place[i]);
}

// Queries and keys of a row turn to their position.
void Worker::turn(float* row, int position) const {
  if (h_.position != rotary) return;
  const size_t at = times(position, h_.rotated / 2);
  for (int head = 0; head < h_.n_heads + h_.n_kv_heads; ++head) rotate(row + head * h_.d_head, model_.cosines + at, model_.sines + at, h_.rotated / 2);
}

// [key]: what is added to the scores of a query, or none.
const float* Worker::bias_of(const Stack& stack, int head, int query) const {
  if (stack.bias == nullptr) return nullptr;
  return stack.bias + times(head, 2 * h_.max_positions - 1) + h_.max_positions - 1 - query;
}

// ------------------------------------------------------------------------------------------------------------ encoder

void Worker::encode(const int32_t* tokens, const int32_t* lengths, const int32_t* places, int count) {
  int rows = 0;
  for (int i = 0; i < count; ++i) rows += lengths[i];
  float* x = x_.of(times(rows, h_.d_model));
  for (int i = 0, row = 0; i < count; ++i)
    for (int p = 0; p < lengths[i]; ++p, ++row) embed(model_.encoder, tokens[row], p, x + times(row, h_.d_model));
  for (const Layer& layer : model_.encoder.layers) {
    sublayer(layer.self_norm, rows, [&](const float* in) { attend_within(layer, in, lengths, count, rows); });
    sublayer(layer.ffn_norm, rows, [&](const float* in) { feed_forward(layer, in, rows); });
  }
  if (model_.encoder.final_norm.present) norm_rows(model_.encoder.final_norm, x, x, rows);
  remember(lengths, places, count, rows);
}

// Self-attention of whole sentences, each within itself.
void Worker::attend_within(const Layer& layer, const float* in, const int32_t* lengths, int count, int rows) {
  const int width = layer.qkv.out, queries = h_.n_heads * h_.d_head, keys = h_.n_kv_heads * h_.d_head, joined = layer.self_out.in;
  float* qkv = wide_.of(times(rows, width));
  multiply(layer.qkv, in, rows, qkv);
  float* heads = heads_.of(times(rows, joined));
  for (int i = 0, first = 0; i < count; first += lengths[i++]) {
    for (int p = 0; p < lengths[i]; ++p) {
      float* row = qkv + times(first + p, width);
      turn(row, p);
      for (int head = 0; head < h_.n_kv_heads; ++head) {
        const float* key = row + queries + head * h_.d_head;
        within_.append(within_.at(0, 0, head), key, key + keys, p);
      }
      std::fill(heads + times(first + p, joined) + queries, heads + times(first + p + 1, joined), 0.0f);
    }
    team_.share(h_.n_heads, double{2} * lengths[i] * lengths[i] * queries, [&](int part, int begin, int end) {
      for (int head = begin; head < end; ++head) {
        const size_t at = within_.at(0, 0, head / group_);
        for (int p = 0; p < lengths[i]; ++p)
          within_.attend(at, at, qkv + times(first + p, width) + head * h_.d_head, lengths[i], h_.score_scale, bias_of(model_.encoder, head, p),
                         scores_.get() + times(part, longest_), heads + times(first + p, joined) + head * h_.d_head);
      }
    });
  }
  multiply(layer.self_out, heads, rows, x_.get(), true);
}

// Keys and values of the sources, once for all steps.
void Worker::remember(const int32_t* lengths, const int32_t* places, int count, int rows) {
  const int width = model_.cross_width(), keys = h_.n_kv_heads * h_.d_head;
  float* projected = wide_.of(times(rows, width));
  for (int number = 0; number < h_.decoder_layers; ++number) {
    multiply(model_.decoder.layers[static_cast<size_t>(number)].cross_kv, x_.get(), rows, projected);
    for (int i = 0, row = 0; i < count; ++i)
      for (int p = 0; p < lengths[i]; ++p, ++row)
        for (int head = 0; head < h_.n_kv_heads; ++head) {
          const float* key = projected + times(row, width) + head * h_.d_head;
          memory_.append(memory_.at(places[i], number, head), key, key + keys, p);
        }
  }
  for (int i = 0; i < count; ++i) lengths_[static_cast<size_t>(places[i])] = lengths[i];
}

// ------------------------------------------------------------------------------------------------------------ decoder

void Worker::step(const Row* rows, int count) {
  rows_ = count;
  float* x = x_.of(times(count, h_.d_model));
  for (int r = 0; r < count; ++r) embed(model_.decoder, rows[r].token, rows[r].position, x + times(r, h_.d_model));
  for (int number = 0; number < h_.decoder_layers; ++number) {
    const Layer& layer = model_.decoder.layers[static_cast<size_t>(number)];
    sublayer(layer.self_norm, count, [&](const float* in) { attend_target(layer, number, in, rows, count); });
    if (h_.encoder_layers > 0)
      sublayer(layer.cross_norm, count, [&](const float* in) { attend_source(layer, number, in, rows, count); });
    sublayer(layer.ffn_norm, count, [&](const float* in) { feed_forward(layer, in, count); });
  }
  if (model_.decoder.final_norm.present) norm_rows(model_.decoder.final_norm, x, x, count);
}

Inputs Worker::hidden() { return inputs(model_.output, x_.get(), rows_); }

void Worker::attend_target(const Layer& layer, int number, const float* in, const Row* rows, int count) {
  const int width = layer.qkv.out, queries = h_.n_heads * h_.d_head, keys = h_.n_kv_heads * h_.d_head, joined = layer.self_out.in;
  float* qkv = wide_.of(times(count, width));
  multiply(layer.qkv, in, count, qkv);
  float* heads = heads_.of(times(count, joined));
  double positions = 0;
  for (int r = 0; r < count; ++r) {
    turn(qkv + times(r, width), rows[r].position);
    std::fill(heads + times(r, joined) + queries, heads + times(r + 1, joined), 0.0f);
    positions += rows[r].position + 1;
  }
  const auto at = [&](int i) { return own_.at(rows[i / h_.n_kv_heads].slot, number, i % h_.n_kv_heads); };
  team_.share(count * h_.n_kv_heads, 2 * positions * queries, [&](int part, int begin, int end) {
    for (int i = begin; i < end; ++i) {
      const int r = i / h_.n_kv_heads, group = i % h_.n_kv_heads, position = rows[r].position;
      const float* row = qkv + times(r, width);
      const float* key = row + queries + group * h_.d_head;
      own_.append(at(i), key, key + keys, position);
      for (int head = group * group_; head < (group + 1) * group_; ++head)
        own_.attend(at(i), at(std::min(i + 1, end - 1)), row + head * h_.d_head, position + 1, h_.score_scale, bias_of(model_.decoder, head, position),
                    scores_.get() + times(part, longest_), heads + times(r, joined) + head * h_.d_head);
    }
  });
  multiply(layer.self_out, heads, count, x_.get(), true);
}

void Worker::attend_source(const Layer& layer, int number, const float* in, const Row* rows, int count) {
  const int queries = h_.n_heads * h_.d_head, joined = layer.cross_out.in;
  float* q = wide_.of(times(count, joined));
  multiply(layer.cross_q, in, count, q);
  float* heads = heads_.of(times(count, joined));
  double positions = 0;
  bool watched = false;
  for (int r = 0; r < count; ++r) {
    watched = watched || rows[r].attention != nullptr;
    std::fill(heads + times(r, joined) + queries, heads + times(r + 1, joined), 0.0f);
    positions += lengths_[static_cast<size_t>(rows[r].sentence)];
  }
  const auto at = [&](int i) { return memory_.at(rows[i / h_.n_heads].sentence, number, i % h_.n_heads / group_); };
  // Watched, all heads of a row add to the same numbers: then one thread does it.
  team_.share(count * h_.n_heads, watched ? 0.0 : 2 * positions * queries, [&](int part, int begin, int end) {
    float* scores = scores_.get() + times(part, longest_);
    for (int i = begin; i < end; ++i) {
      const int r = i / h_.n_heads, head = i % h_.n_heads, length = lengths_[static_cast<size_t>(rows[r].sentence)];
      const float share = memory_.attend(at(i), at(std::min(i + 1, end - 1)), q + times(r, joined) + head * h_.d_head, length, h_.score_scale,
                                         nullptr, scores, heads + times(r, joined) + head * h_.d_head);
      const float part_of_mean = share / static_cast<float>(h_.n_heads * h_.decoder_layers);
      for (int t = 0; rows[r].attention != nullptr && t < length; ++t) rows[r].attention[t] += scores[t] * part_of_mean;
    }
  });
  multiply(layer.cross_out, heads, count, x_.get(), true);
}

}  // namespace dragoman
