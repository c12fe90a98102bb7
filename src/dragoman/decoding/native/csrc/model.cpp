#include "model.h"

#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace dragoman {
namespace {

constexpr size_t ALIGNMENT = 64;  // every array of the file starts at a multiple of it

size_t aligned(size_t bytes) { return (bytes + ALIGNMENT - 1) / ALIGNMENT * ALIGNMENT; }

}  // namespace

// Reads the arrays of the file in the order in which pack.py writes them.  They are used in place.
class WeightReader {
 public:
  explicit WeightReader(Model& model) : model_(model), file_(model.file_), offset_(aligned(sizeof(Header))) {}

  template <typename T>
  const T* array(int64_t count) {
    return reinterpret_cast<const T*>(file_.data() + advance(static_cast<size_t>(count) * sizeof(T)));
  }

  const void* embedding(int vocab) {
    const Header& h = model_.header();
    const int64_t count = int64_t{vocab} * h.d_model;
    return h.fp16 != 0 ? static_cast<const void*>(array<uint16_t>(count)) : array<float>(count);
  }

  // Four integers (outputs, inputs, dtype, 1 if there is a bias), the weights, for int8 the scales and compensation,
  // and the bias.
  PackedMatrix matrix(int outputs, int inputs) {
    const int32_t* shape = array<int32_t>(4);
    if (shape[0] != outputs || shape[1] != inputs || shape[2] < 0 || shape[2] > 2) {
      throw std::runtime_error("found a matrix of " + std::to_string(shape[0]) + " x " + std::to_string(shape[1]) +
                               ", dtype " + std::to_string(shape[2]) + "; expected " + std::to_string(outputs) + " x " +
                               std::to_string(inputs));
    }
    PackedMatrix m;
    m.dtype = static_cast<DType>(shape[2]);
    m.outputs = outputs;
    m.inputs = inputs;
    const int64_t count = static_cast<int64_t>(outputs) * inputs;
    switch (m.dtype) {
      case DType::float32: m.weights = array<float>(count); break;
      case DType::bfloat16: m.weights = array<uint16_t>(count); break;
      case DType::int8:
        m.weights = array<int8_t>(count);
        m.scales = array<float>(outputs);
        m.compensation = array<int32_t>(outputs);
    }
    if (m.dtype == DType::bfloat16 && !supports_bf16()) {
      throw std::runtime_error("the weights are bfloat16, which this processor does not support");
    }
    if (shape[3] != 0) m.bias = array<float>(outputs);
    return m;
  }

  Norm norm() {
    const Header& h = model_.header();
    Norm n = gain(h.unpadded_d_model, h.d_model, h.eps);
    n.subtract_mean = h.layer_norm != 0;
    if (n.subtract_mean) n.bias = array<float>(h.d_model);
    return n;
  }

  Norm outer_norm() { return model_.header().norm_order == sandwich ? norm() : Norm(); }

  // An RMSNorm, or none if the size is 0.
  Norm gain(int size, int width, float eps) {
    Norm n;
    if (size == 0) return n;
    n.size = size;
    n.eps = eps;
    n.subtract_mean = false;
    n.present = true;
    n.weight = array<float>(width);
    return n;
  }

  LayerWeights layer(bool cross_attention) {
    const Header& h = model_.header();
    const int q_width = model_.q_width();
    LayerWeights l;
    l.self_norm = norm();
    l.self_outer = outer_norm();
    if (cross_attention && h.ssru != 0) {
      l.ssru = matrix(2 * h.d_model, h.d_model);
    } else {
      l.qkv = matrix(model_.qkv_width(), h.d_model);
      l.q_norm = gain(h.qk_norm, h.d_head, h.qk_eps);
      l.k_norm = gain(h.qk_norm, h.d_head, h.qk_eps);
      l.self_out = matrix(h.d_model, q_width);
    }
    if (cross_attention) {
      l.cross_norm = norm();
      l.cross_outer = outer_norm();
      l.cross_q = matrix(q_width, h.d_model);
      l.cross_kv = matrix(model_.cross_kv_width(), h.d_model);
      l.cross_out = matrix(h.d_model, q_width);
    }
    l.ffn_norm = norm();
    l.ffn_outer = outer_norm();
    l.ffn_in = matrix(h.gated != 0 ? 2 * h.d_ff : h.d_ff, h.d_model);
    l.ffn_out = matrix(h.d_model, h.d_ff);
    return l;
  }

  void positions(StackWeights& stack) {
    const Header& h = model_.header();
    if (h.position_kind == additive) stack.positions = array<float>(static_cast<int64_t>(h.max_positions) * h.d_model);
    if (h.position_kind == relative_bias) {
      stack.position_bias = array<float>(static_cast<int64_t>(h.n_heads) * (2 * h.max_positions - 1));
    }
  }

  void stack(StackWeights& stack, int layers, bool cross_attention) {
    const Header& h = model_.header();
    if (h.embedding_norm != 0) stack.embedding_norm = norm();
    for (int i = 0; i < layers; ++i) stack.layers.push_back(layer(cross_attention));
    if (h.norm_order != post) stack.final_norm = norm();
  }

  bool at_end() const { return offset_ == aligned(file_.size()); }

 private:
  // Return the offset of the next `bytes` and skip them with their padding.
  size_t advance(size_t bytes) {
    if (offset_ > file_.size() || bytes > file_.size() - offset_) {
      throw std::runtime_error("the file ends after " + std::to_string(file_.size()) +
                               " bytes, before the end of its weights");
    }
    const size_t begin = offset_;
    offset_ += aligned(bytes);
    return begin;
  }

  Model& model_;
  const FileContent& file_;
  size_t offset_;
};

// The bounds keep every product of two sizes within 64 bits.
void Model::check_header() const {
  const Header& h = header_;
  const auto within = [](int32_t x, int32_t low, int32_t high) { return x >= low && x <= high; };
  if (std::memcmp(h.magic, "DRAGOMAN", 8) != 0 || h.version != VERSION) {
    throw std::runtime_error("not a packed model of version " + std::to_string(VERSION));
  }
  const bool valid =
      within(h.d_model, OUTPUT_BLOCK, 1 << 16) && h.d_model % OUTPUT_BLOCK == 0 &&
      within(h.unpadded_d_model, 1, h.d_model) && within(h.d_ff, OUTPUT_BLOCK, 1 << 16) && h.d_ff % OUTPUT_BLOCK == 0 &&
      within(h.n_heads, 1, 1 << 10) && within(h.n_kv_heads, 1, h.n_heads) && int64_t{h.n_heads} * h.d_head <= 1 << 16 &&
      h.n_heads % h.n_kv_heads == 0 && within(h.d_head, KV_BLOCK, 1 << 12) && h.d_head % KV_BLOCK == 0 &&
      within(h.decoder_layers, 1, 1 << 10) && within(h.encoder_layers, 0, 1 << 10) && within(h.src_vocab, 1, 1 << 24) &&
      within(h.tgt_vocab, 1, 1 << 24) && (h.shared_embedding == 0 || h.src_vocab == h.tgt_vocab) &&
      within(h.activation, 0, 4) && within(h.position_kind, none, relative_bias) && within(h.rotary_dim, 0, h.d_head) &&
      h.rotary_dim % 2 == 0 && within(h.max_positions, 1, 1 << 20) && within(h.ssru, 0, 1) &&
      within(h.embedding_norm, 0, 1) && within(h.tied_output, 0, 1) &&
      (h.ssru == 0 || (h.encoder_layers > 0 && h.position_kind <= additive)) && std::isfinite(h.eps) &&
      within(h.norm_order, post, sandwich) && within(h.qk_norm, 0, h.d_head) && within(h.rotary_period, 0, 1 << 10) &&
      std::isfinite(h.qk_eps) && std::isfinite(h.attention_scale) && std::isfinite(h.embedding_scale);
  if (!valid) throw std::runtime_error("the header holds invalid sizes");
}

FileContent::FileContent(const std::string& path) {
  const int file = open_file(path);
  const auto fail = [&](const std::string& reason) {
    if (file >= 0) close_file(file);
    throw std::runtime_error(path + ": " + reason);
  };
  const int64_t size = file < 0 ? -1 : file_size(file);
  if (size < 0) fail(std::strerror(errno));
  if (size < static_cast<int64_t>(sizeof(Header))) fail("not a packed model; delete it, and the model is packed again");
  size_ = static_cast<size_t>(size);
  char* const data = [&] {
    try {
      return buffer_.reserve(size_);
    } catch (...) {
      close_file(file);
      throw;
    }
  }();
  for (size_t done = 0; done < size_;) {
    const int64_t count = read_file(file, data + done, size_ - done);
    if (count < 0 && errno == EINTR) continue;
    if (count <= 0) {
      fail("cannot be read: " +
           std::string(count < 0 ? std::strerror(errno) : "the file was truncated during reading"));
    }
    done += static_cast<size_t>(count);
  }
  close_file(file);
}

Model::Model(const std::string& path) : file_(path) {
  std::memcpy(&header_, file_.data(), sizeof(header_));
  const Header& h = header_;
  try {
    check_header();
    WeightReader reader(*this);
    const bool has_encoder = h.encoder_layers > 0;
    const bool shared = has_encoder && h.shared_embedding != 0;
    if (has_encoder && !shared) encoder.embedding = reader.embedding(h.src_vocab);
    if (h.tied_output == 0) decoder.embedding = reader.embedding(h.tgt_vocab);
    if (shared) encoder.embedding = decoder.embedding;
    if (h.position_kind == rotary) {
      const int64_t count = static_cast<int64_t>(h.max_positions) * (h.rotary_dim / 2);
      for (int table = 0; table < (h.rotary_period > 0 ? 2 : 1); ++table) {
        rotary_cos[table] = reader.array<float>(count);
        rotary_sin[table] = reader.array<float>(count);
      }
    }
    if (has_encoder) reader.positions(encoder);
    reader.positions(decoder);
    if (has_encoder) reader.stack(encoder, h.encoder_layers, false);
    reader.stack(decoder, h.decoder_layers, has_encoder);
    output = reader.matrix(padded_outputs(h.tgt_vocab), h.d_model);
    if (!reader.at_end()) throw std::runtime_error("the file has more bytes than its header requires");
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + ": " + error.what() + "; delete it, and the model is packed again");
  }
}

}  // namespace dragoman
