#include "model.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cmath>
#include <cstring>
#include <stdexcept>

namespace dragoman {

// Walks through the file in the order in which it was written; every piece begins at a multiple of 64 bytes.
class Reader {
 public:
  explicit Reader(Model& model) : model_(model), file_(model.file_), place_((sizeof(Header) + 63) / 64 * 64) {}

  template <typename T>
  const T* numbers(int64_t count) {
    return reinterpret_cast<const T*>(file_.data() + advance(static_cast<size_t>(count) * sizeof(T)));
  }

  const void* embedding(int vocab) {
    const Header& h = model_.sizes();
    const int64_t count = int64_t{vocab} * h.d_model;
    return h.half != 0 ? static_cast<const void*>(numbers<uint16_t>(count)) : numbers<float>(count);
  }

  // out, in, kind of numbers, 1 = with bias; then the weights.
  Matrix matrix(int out, int in) {
    const int32_t* about = numbers<int32_t>(4);
    if (about[0] != out || about[1] != in || about[2] < 0 || about[2] > 2)
      throw std::runtime_error("a matrix of " + std::to_string(about[0]) + " x " + std::to_string(about[1]) + ", kind " + std::to_string(about[2]) +
                               ", where " + std::to_string(out) + " x " + std::to_string(in) + " is expected");
    Matrix m;
    m.kind = static_cast<Numbers>(about[2]), m.out = out, m.in = in;
    const int64_t count = static_cast<int64_t>(out) * in;
    switch (m.kind) {
      case Numbers::float32: m.weights = numbers<float>(count); break;
      case Numbers::bfloat16: m.weights = numbers<uint16_t>(count); break;
      case Numbers::int8:
        m.weights = numbers<int8_t>(count);
        m.scales = numbers<float>(out);
        m.shift = numbers<int32_t>(out);
    }
    if (m.kind == Numbers::bfloat16 && !has_bfloat16())
      throw std::runtime_error("it is packed in bfloat16, which this processor does not multiply");
    if (about[3] != 0) m.bias = numbers<float>(out);
    return m;
  }

  Norm norm() {
    const Header& h = model_.sizes();
    Norm n;
    n.true_width = h.true_d_model, n.eps = h.eps, n.centred = h.centred_norm != 0, n.present = true;
    n.weight = numbers<float>(h.d_model);
    if (n.centred) n.bias = numbers<float>(h.d_model);
    return n;
  }

  Layer layer(bool cross) {
    const Header& h = model_.sizes();
    const int heads = model_.queries_width();
    Layer l;
    l.self_norm = norm(), l.qkv = matrix(model_.qkv_width(), h.d_model), l.self_out = matrix(h.d_model, heads);
    if (cross) {
      l.cross_norm = norm(), l.cross_q = matrix(heads, h.d_model);
      l.cross_kv = matrix(model_.cross_width(), h.d_model), l.cross_out = matrix(h.d_model, heads);
    }
    l.ffn_norm = norm();
    l.inner = matrix(h.gated != 0 ? 2 * h.d_ff : h.d_ff, h.d_model);
    l.outer = matrix(h.d_model, h.d_ff);
    return l;
  }

  void positions(Stack& s) {
    const Header& h = model_.sizes();
    if (h.position == added) s.positions = numbers<float>(static_cast<int64_t>(h.max_positions) * h.d_model);
    if (h.position == distances) s.bias = numbers<float>(static_cast<int64_t>(h.n_heads) * (2 * h.max_positions - 1));
  }

  void stack(Stack& s, int layers, bool cross) {
    const Header& h = model_.sizes();
    for (int i = 0; i < layers; ++i) s.layers.push_back(layer(cross));
    if (h.pre_norm != 0) s.final_norm = norm();
  }

  bool at_end() const { return place_ == (file_.bytes() + 63) / 64 * 64; }

 private:
  // The place of the next `bytes`, and on to what follows them.
  size_t advance(size_t bytes) {
    if (place_ > file_.bytes() || bytes > file_.bytes() - place_)
      throw std::runtime_error("the packed model ends at byte " + std::to_string(file_.bytes()) + ", in the middle of its weights");
    const size_t at = place_;
    place_ += (bytes + 63) / 64 * 64;
    return at;
  }

  Model& model_;
  const Content& file_;
  size_t place_;
};

// Every size is in bounds in which no product of two of them leaves 64 bits.
void Model::check() const {
  const Header& h = header_;
  const auto within = [](int32_t x, int32_t least, int32_t most) { return x >= least && x <= most; };
  if (std::memcmp(h.magic, "DRAGOMAN", 8) != 0 || h.version != VERSION)
    throw std::runtime_error("not a packed model of version " + std::to_string(VERSION));
  const bool good = within(h.d_model, BLOCK, 1 << 16) && h.d_model % BLOCK == 0 && within(h.true_d_model, 1, h.d_model) &&
                    within(h.d_ff, BLOCK, 1 << 16) && h.d_ff % BLOCK == 0 && within(h.n_heads, 1, 1 << 10) && within(h.n_kv_heads, 1, h.n_heads) &&
                    int64_t{h.n_heads} * h.d_head <= 1 << 16 &&
                    h.n_heads % h.n_kv_heads == 0 && within(h.d_head, LANES, 1 << 12) && h.d_head % LANES == 0 &&
                    within(h.decoder_layers, 1, 1 << 10) && within(h.encoder_layers, 0, 1 << 10) && within(h.src_vocab, 1, 1 << 24) &&
                    within(h.tgt_vocab, 1, 1 << 24) && (h.shared_embedding == 0 || h.src_vocab == h.tgt_vocab) && within(h.activation, 0, 4) &&
                    within(h.position, none, distances) && within(h.rotated, 0, h.d_head) && h.rotated % 2 == 0 &&
                    within(h.max_positions, 1, 1 << 20) && std::isfinite(h.eps) && std::isfinite(h.score_scale) && std::isfinite(h.embedding_scale);
  if (!good) throw std::runtime_error("its sizes cannot be");
}

// O_NONBLOCK: opening a pipe would otherwise wait for somebody to write into it.
Content::Content(const std::string& path) {
  const int file = open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
  const auto fail = [&](const std::string& why) {
    if (file >= 0) close(file);
    throw std::runtime_error(path + ": " + why);
  };
  struct stat about;
  if (file < 0 || fstat(file, &about) != 0) fail(std::strerror(errno));
  if (!S_ISREG(about.st_mode) || about.st_size < static_cast<off_t>(sizeof(Header))) fail("not a packed model; remove it, and it is packed again");
  bytes_ = static_cast<size_t>(about.st_size);
  char* const to = [&] {
    try {
      return room_.of(bytes_);
    } catch (...) {
      close(file);
      throw;
    }
  }();
  for (size_t done = 0; done < bytes_;) {
    const ssize_t got = pread(file, to + done, bytes_ - done, static_cast<off_t>(done));
    if (got < 0 && errno == EINTR) continue;
    if (got <= 0) fail("it cannot be read: " + std::string(got < 0 ? std::strerror(errno) : "it became shorter while it was read"));
    done += static_cast<size_t>(got);
  }
  close(file);
}

Model::Model(const std::string& path) : file_(path) {
  std::memcpy(&header_, file_.data(), sizeof(header_));
  const Header& h = header_;
  try {
    check();
    Reader reader(*this);
    const bool cross = h.encoder_layers > 0;
    if (cross) encoder.embedding = reader.embedding(h.src_vocab);
    decoder.embedding = cross && h.shared_embedding != 0 ? encoder.embedding : reader.embedding(h.tgt_vocab);
    if (h.position == rotary) {
      const int64_t count = static_cast<int64_t>(h.max_positions) * (h.rotated / 2);
      cosines = reader.numbers<float>(count), sines = reader.numbers<float>(count);
    }
    if (cross) reader.positions(encoder);
    reader.positions(decoder);
    if (cross) reader.stack(encoder, h.encoder_layers, false);
    reader.stack(decoder, h.decoder_layers, cross);
    output = reader.matrix(padded(h.tgt_vocab), h.d_model);
    if (!reader.at_end()) throw std::runtime_error("more bytes than its sizes say");
  } catch (const std::runtime_error& error) {
    throw std::runtime_error(path + ": " + error.what() + "; remove it, and it is packed again");
  }
}

}  // namespace dragoman
