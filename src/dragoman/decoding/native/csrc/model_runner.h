// Runs a model for one search: the encoder, single steps of the decoder, and the memory that both need.
//
// A target slot is the decoder's self-attention cache of one hypothesis, or its SSRU cells.  A source slot is the
// cross-attention cache of one sentence, shared by all of its hypotheses.  Arrays are row-major; "rows" are source
// tokens in the encoder and hypotheses in the decoder.
#pragma once

#include <vector>

#include "buffer.h"
#include "kv_cache.h"
#include "model.h"
#include "shortlist.h"
#include "thread_pool.h"

namespace dragoman {

// One hypothesis in a step of the decoder.
struct StepRow {
  int32_t token;     // input of the step
  int32_t position;  // of `token` in the target
  int32_t target_slot;
  int32_t source_slot = 0;
  // null, or (source length,): the cross-attention weights, averaged over heads and layers, are added to it.
  float* attention = nullptr;
};

class ModelRunner {
 public:
  // Both must outlive the runner.
  ModelRunner(const Model& model, ThreadPool& pool);

  // Allocate the slots.  target_lengths, source_lengths: positions of each target slot and each source slot.
  // shortlist_size: tokens of the largest shortlist, 0 without shortlists.
  void reserve(const std::vector<int>& target_lengths, const std::vector<int>& source_lengths, int shortlist_size = 0);

  // Bytes of the caches and the shortlist of one sentence with `hypotheses` target slots.
  static int64_t sentence_bytes(const Model& model, int hypotheses, int target_length, int source_length,
                                int shortlist_size);

  // Encode `count` sources and fill their source slots.
  // tokens: all sources, concatenated.  lengths, source_slots: (count,).
  void encode(const int32_t* tokens, const int32_t* lengths, const int32_t* source_slots, int count);

  // Restrict the sentence in a source slot to `tokens` (ascending), which the caller keeps alive.
  const Shortlist* set_shortlist(int source_slot, const int32_t* tokens, int count);

  // Run one step of the decoder.  Afterwards `hidden_states` returns its output.  is_prompt: rows of the same target slot
  // are successive positions.
  void step(const StepRow* rows, int count, bool is_prompt = false);

  // Copy the first `length` positions of a target slot to another one; with SSRU, its cells after the last step.
  void copy_slot(int from, int to, int length);

  // Discard the content of all memory (`Buffer::release_pages`).
  void release_pages();

  // The last decoder output (rows, d_model) in the type of the output matrix.
  GemmInput hidden_states();

  const Model& model() const { return model_; }
  ThreadPool& pool() const { return pool_; }
  size_t capacity_bytes() const;
  size_t used_bytes() const;

 private:
  // f(all members whose size depends on the batch).
  template <typename Self, typename F>
  static auto for_all_buffers(Self& self, const F& f) {
    return f(self.self_cache_, self.cells_, self.cross_cache_, self.encoder_cache_, self.x_, self.normalized_,
             self.residual_, self.projected_, self.context_, self.gated_, self.scales_, self.scores_, self.quantized_,
             self.bf16_, self.shortlist_memory_);
  }

  GemmInput gemm_input(const PackedMatrix& m, const float* x, int rows);
  void linear(const PackedMatrix& m, const float* x, int rows, float* y, bool accumulate = false);
  void normalize_rows(const Norm& norm, const float* x, float* y, int rows);
  template <typename F>
  void sublayer(const Norm& norm, const Norm& outer, int rows, const F& f);
  void feed_forward(const LayerWeights& layer, const float* in, int rows);
  void embed(const StackWeights& stack, int32_t token, int position, float* x) const;
  void prepare(const LayerWeights& layer, int layer_index, float* qkv, int position) const;
  const float* position_bias(const StackWeights& stack, int head, int query_position) const;
  void encoder_self_attention(const LayerWeights& layer, int layer_index, const float* in, const int32_t* lengths,
                              int count, int rows);
  void decoder_self_attention(const LayerWeights& layer, int layer_index, const float* in, const StepRow* rows,
                              int count, bool is_prompt);
  float* cell(int target_slot, int layer_index) const;
  void decoder_ssru(const LayerWeights& layer, int layer_index, const float* in, const StepRow* rows, int count);
  void cross_attention(const LayerWeights& layer, int layer_index, const float* in, const StepRow* rows, int count);

  const Model& model_;
  const Header& h_;
  ThreadPool& pool_;
  int q_size_, k_size_;                  // sizes of the queries and of the keys of a row
  int group_size_;                       // query heads per key/value head
  int scores_size_ = KV_BLOCK;           // positions per thread in scores_
  int rows_ = 0;                         // of the last step
  KVCache self_cache_;                   // one sequence per target slot; empty with SSRU
  Buffer<float> cells_;                  // (target slots, decoder_layers, d_model): with SSRU only
  KVCache cross_cache_;                  // one sequence per source slot
  KVCache encoder_cache_;                // one layer of one source
  std::vector<int32_t> source_lengths_;  // by source slot
  std::vector<int> groups_;              // first rows of the groups of `cross_attention`
  Buffer<float> x_;                      // (rows, d_model): the residual stream
  Buffer<float> normalized_;             // (rows, d_model): input of a pre-norm sublayer
  Buffer<float> residual_;               // (rows, d_model): the residual stream during a sublayer with two norms
  Buffer<float> projected_;              // (rows, outputs): qkv, cross_q, cross_kv or ffn_in
  Buffer<float> context_;                // (rows, q_width): attention outputs of all heads
  Buffer<float> gated_;                  // (rows, d_ff): gated feed-forward layers
  Buffer<float> scales_;                 // (rows,): of quantized_
  Buffer<float> scores_;                 // (threads, scores_size_)
  Buffer<uint8_t> quantized_;            // (rows, inputs): input of an int8 product
  Buffer<uint16_t> bf16_;                // (rows, inputs): input of a bfloat16 product
  std::vector<Shortlist> shortlists_;    // by source slot; empty without shortlists
  size_t shortlist_bytes_ = 0;           // per source slot in shortlist_memory_
  // Without huge pages: a slot has room for the largest shortlist, of which most sentences use little.
  Buffer<char> shortlist_memory_;
};

}  // namespace dragoman
