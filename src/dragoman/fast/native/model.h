// A packed model: one file that many workers read at once.  Tables of which a sentence needs a few rows (embeddings,
// positions) are mapped; what every step reads as a whole (weights) is copied into huge pages, which makes it faster.
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

// A file that is only read, and the same bytes as memory.
class MappedFile {
 public:
  explicit MappedFile(const std::string& path);  // throws std::runtime_error
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  const char* data() const { return data_; }
  size_t bytes() const { return bytes_; }
  void read(char* to, size_t from, size_t bytes) const;  // throws std::runtime_error

 private:
  int file_ = -1;
  const char* data_ = nullptr;
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

  Numbers numbers() const { return output.kind; }
  // Outputs of the fused products.
  int queries_width() const { return padded(header_.n_heads * header_.d_head); }
  int qkv_width() const { return padded((header_.n_heads + 2 * header_.n_kv_heads) * header_.d_head); }
  int cross_width() const { return padded(2 * header_.n_kv_heads * header_.d_head); }
  static int padded(int count) { return (count + BLOCK - 1) / BLOCK * BLOCK; }

 private:
  friend class Reader;
  void check() const;
  MappedFile file_;
  Header header_{};
  Room<char, true> weights_;  // the copy of what follows the tables
};

}  // namespace dragoman
