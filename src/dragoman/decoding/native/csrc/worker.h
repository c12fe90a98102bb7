// One model at work: the encoder, a step of the decoder, and the hidden states of that step.
#pragma once

#include <vector>

#include "cache.h"
#include "model.h"
#include "room.h"
#include "shortlist.h"
#include "team.h"

namespace dragoman {

// What one row of a step is: the word it reads, where it stands, whose memory it has.
struct Row {
  int32_t token;
  int32_t position;
  int32_t slot;      // of its own keys and values
  int32_t sentence;  // place of the source's keys and values
  float* attention = nullptr;  // where the mean of all heads' weights on the source is added to, if anywhere
};

class Worker {
 public:
  Worker(const Model& model, Team& team);

  // slots: target positions of each row's memory.  sources: words of each source.  listed: words of the longest shortlist,
  // if there are any.
  void reserve(const std::vector<int>& slots, const std::vector<int>& sources, int listed = 0);
  // Bytes of the keys, values and shortlist of a sentence in so many slots.
  static int64_t bytes_of(const Model& model, int slots, int target, int source, int listed);
  // Source ids one behind the other, `lengths` of them each, into the places given.
  void encode(const int32_t* tokens, const int32_t* lengths, const int32_t* places, int count);
  // The words, in ascending order, that the sentence in this place may use; they stay the caller's.
  const Shortlist* allow(int place, const int32_t* words, int count);
  // Reads one word a row.
  void step(const Row* rows, int count);
  // The memory of a slot, as far as `length` positions, for another one.
  void copy(int from, int to, int length) { own_.copy(from, to, length); }
  // What the sentences left is no longer needed: `Room::lend` for all of it.
  void lend();

  // What `step` left: (rows, d_model), as the output matrix wants it.
  Inputs hidden();
  const Model& model() const { return model_; }
  Team& team() const { return team_; }
  size_t bytes() const;
  size_t used() const;

 private:
  // f of all that grows with the sentences.
  template <typename W, typename F>
  static auto of_rooms(W& w, const F& f) {
    return f(w.own_, w.memory_, w.within_, w.x_, w.normed_, w.wide_, w.heads_, w.hidden_, w.scales_, w.scores_, w.bytes_, w.brains_, w.list_rooms_);
  }
  Inputs inputs(const Matrix& m, const float* x, int rows);
  void multiply(const Matrix& m, const float* x, int rows, float* y, bool accumulate = false);
  void norm_rows(const Norm& norm, const float* x, float* y, int rows);
  template <typename F>
  void sublayer(const Norm& norm, int rows, const F& f);
  void embed(const Stack& stack, int32_t token, int position, float* x) const;
  void turn(float* row, int position) const;
  const float* bias_of(const Stack& stack, int head, int query) const;
  void attend_within(const Layer& layer, const float* in, const int32_t* lengths, int count, int rows);
  void attend_target(const Layer& layer, int number, const float* in, const Row* rows, int count);
  void attend_source(const Layer& layer, int number, const float* in, const Row* rows, int count);
  void feed_forward(const Layer& layer, const float* in, int rows);
  void remember(const int32_t* lengths, const int32_t* places, int count, int rows);

  const Model& model_;
  const Header& h_;
  Team& team_;
  int group_;             // heads of queries to one of keys
  int longest_ = LANES, rows_ = 0;
  Cache own_, memory_, within_;
  std::vector<int32_t> lengths_;
  Room<float> x_, normed_, wide_, heads_, hidden_, scales_, scores_;
  Room<uint8_t> bytes_;
  Room<uint16_t> brains_;
  std::vector<Shortlist> lists_;  // by place, in rooms of the same size
  size_t list_bytes_ = 0;
  Room<char, true> list_rooms_;
};

}  // namespace dragoman
