// A packed model: the weights of one file, read into memory once and shared by all threads.
//
// The file is read, not mapped: truncating a mapped file would end the process with SIGBUS, and anonymous memory can
// use huge pages, which make a step faster.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "buffer.h"
#include "gemm.h"
#include "kv_cache.h"
#include "ops.h"

namespace dragoman {

constexpr int32_t VERSION = 3;  // of the file format

// The first bytes of the file.  dragoman/decoding/native/pack.py writes the same fields in the same order.
struct Header {
  char magic[8];    // "DRAGOMAN"
  int32_t version;  // VERSION
  int32_t fp16;     // 1: embedding tables and the key/value cache are float16; 0: float32
  // d_model and d_ff are padded to multiples of OUTPUT_BLOCK, d_head to a multiple of KV_BLOCK.
  int32_t d_model, unpadded_d_model, d_ff;
  int32_t n_heads, n_kv_heads, d_head;
  int32_t encoder_layers, decoder_layers;  // encoder_layers = 0: a decoder-only model
  int32_t src_vocab, tgt_vocab;
  int32_t shared_embedding;      // 1: encoder and decoder share their embeddings
  int32_t norm_order;            // NormOrder
  int32_t layer_norm;            // 1: LayerNorm, 0: RMSNorm
  int32_t activation, gated;     // Activation; 1: gated feed-forward layers
  int32_t position_kind;         // PositionKind
  int32_t rotary_dim;            // rotary: features of a head that are rotated, in pairs (i, i + rotary_dim / 2)
  int32_t max_positions;
  float eps, attention_scale, embedding_scale;  // attention_scale: 1 / sqrt(features of a key)
  int32_t ssru;            // 1: the decoder uses an SSRU instead of self-attention
  int32_t embedding_norm;  // 1: the sum of embedding and position is normalized
  int32_t tied_output;     // 1: the embeddings of the decoder are the rows of the output matrix; it has no table
  // The following are 0 in older files, whose header is padded.
  int32_t qk_norm;         // features of a query that are normalized, as those of a key; 0: none
  int32_t rotary_period;   // rotary: every such layer uses the first table, the others the second; 0: one table
  float qk_eps;            // of the norms of queries and keys
};

enum NormOrder : int32_t { post = 0, pre = 1, sandwich = 2 };  // after, before, or before and after a sublayer

enum PositionKind : int32_t {
  none = 0,
  additive = 1,       // a table is added to the embeddings (sinusoidal, learned)
  rotary = 2,         // queries and keys are rotated
  relative_bias = 3,  // a bias per head and distance is added to the scores (T5, ALiBi)
};

struct LayerWeights {
  Norm self_norm, cross_norm, ffn_norm;
  Norm self_outer, cross_outer, ffn_outer;  // sandwich: of the results of the sublayers
  Norm q_norm, k_norm;
  // qkv: queries of all heads, then keys, then values.  cross_kv: keys, then values.
  // ffn_in: (d_ff, d_model), or (2 d_ff, d_model) with the gate in the second half.
  // ssru replaces qkv and self_out: candidates, then forget gates (2 d_model, d_model).
  PackedMatrix qkv, self_out, ssru, cross_q, cross_kv, cross_out, ffn_in, ffn_out;
};

struct StackWeights {
  // (vocab, d_model), float16 or float32 as the header specifies; null: the rows of the output matrix.
  const void* embedding = nullptr;
  const float* positions = nullptr;  // additive: (max_positions, d_model)
  // relative_bias: (n_heads, 2 max_positions - 1), indexed by key position - query position + max_positions - 1.
  const float* position_bias = nullptr;
  Norm embedding_norm;
  std::vector<LayerWeights> layers;
  Norm final_norm;
};

// The content of a file in memory.
class FileContent {
 public:
  explicit FileContent(const std::string& path);  // throws std::runtime_error

  const char* data() const { return buffer_.data(); }
  size_t size() const { return size_; }

 private:
  Buffer<char, true> buffer_;
  size_t size_ = 0;
};

class Model {
 public:
  explicit Model(const std::string& path);  // throws std::runtime_error with the path and the reason

  const Header& header() const { return header_; }
  const FileContent& file() const { return file_; }

  StackWeights encoder, decoder;
  const float* rotary_cos[2] = {};  // (max_positions, rotary_dim / 2)
  const float* rotary_sin[2] = {};
  PackedMatrix output;  // (tgt_vocab padded, d_model)

  // Widths of the products for all heads.
  int q_width() const { return padded_outputs(header_.n_heads * header_.d_head); }
  int qkv_width() const { return padded_outputs((header_.n_heads + 2 * header_.n_kv_heads) * header_.d_head); }
  int cross_kv_width() const { return padded_outputs(2 * header_.n_kv_heads * header_.d_head); }

 private:
  friend class WeightReader;
  void check_header() const;

  FileContent file_;
  Header header_{};
};

}  // namespace dragoman
