// A packed model: one file, read once into memory of the process, that many workers use at once.  It is not mapped: a file
// that is truncated while it is mapped ends the process with SIGBUS.  Huge pages make a step faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "cache.h"
#include "layers.h"
#include "matrix.h"

namespace dragoman {

constexpr int32_t VERSION = 2;

// The first bytes of the file; dragoman/fast/pack.py writes the same fields in the same order.
struct Header {
  char magic[8];            // "DRAGOMAN"
  int32_t version;          // VERSION
  int32_t half;             // keys, values and embeddings in half precision
  int32_t d_model, true_d_model, d_ff;
  int32_t n_heads, n_kv_heads, d_head;
  int32_t encoder_layers, decoder_layers;  // no encoder layers: a decoder-only model
  int32_t src_vocab, tgt_vocab;
  int32_t shared_embedding;
  int32_t pre_norm, centred_norm;
  int32_t activation, gated;
  int32_t position;         // 0 none, 1 tables added to embeddings, 2 rotary, 3 a bias a head and distance
  int32_t rotated;          // numbers of a head that turn, in pairs (i, i + rotated / 2)
  int32_t max_positions;
  float eps, score_scale, embedding_scale;
};

enum Position : int32_t { none = 0, added = 1, rotary = 2, distances = 3 };

struct Layer {
  Norm self_norm, cross_norm, ffn_norm;
  Matrix qkv, self_out, cross_q, cross_kv, cross_out, inner, outer;
};

struct Stack {
  const void* embedding = nullptr;   // (vocab, d_model), in half precision if the header says so
  const float* positions = nullptr;  // (max_positions, d_model)
  const float* bias = nullptr;       // (n_heads, 2 max_positions - 1), by key - query + max_positions - 1
  std::vector<Layer> layers;
  Norm final_norm;
};

// The bytes of a file, in memory of this process.
class Content {
 public:
  explicit Content(const std::string& path);  // throws std::runtime_error

  const char* data() const { return room_.get(); }
  size_t bytes() const { return bytes_; }

 private:
  Room<char, true> room_;
  size_t bytes_ = 0;
};

class Model {
 public:
  explicit Model(const std::string& path);  // throws std::runtime_error with what is wrong and where

  const Header& sizes() const { return header_; }
  Stack encoder, decoder;
  const float* cosines = nullptr;  // (max_positions, rotated / 2)
  const float* sines = nullptr;
  Matrix output;

  const Content& file() const { return file_; }
  Numbers numbers() const { return output.kind; }
  // Outputs of the fused products.
  int queries_width() const { return padded(header_.n_heads * header_.d_head); }
  int qkv_width() const { return padded((header_.n_heads + 2 * header_.n_kv_heads) * header_.d_head); }
  int cross_width() const { return padded(2 * header_.n_kv_heads * header_.d_head); }
  static int padded(int count) { return (count + BLOCK - 1) / BLOCK * BLOCK; }

 private:
  friend class Reader;
  void check() const;
  Content file_;
  Header header_{};
};

}  // namespace dragoman
