// Greedy and beam search over many sentences: rows come and go, none waits for another.
#pragma once

#include <unistd.h>

#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "worker.h"

namespace dragoman {

struct Settings {
  int32_t beam, nbest, min_length, no_repeat_ngram;
  int32_t bos, eos, pad;
  int32_t rows;  // at once in one worker
  int32_t threads;
  double alpha;
  int64_t source_tokens;  // at once in one worker, each counted for every beam of its sentence
  int64_t memory;         // bytes of keys, values and shortlists at once in all workers; one sentence is always taken
};

// The most of it that any worker had at once.
struct Usage {
  int64_t rows, source_tokens, bytes;
};

// Ragged lists of ids: row i is ids[offsets[i]] .. ids[offsets[i + 1] - 1].
struct Ragged {
  const int32_t* ids;
  const int64_t* offsets;
};

struct Request {
  Settings settings;
  int32_t count;
  Ragged sources;          // each with its end of sentence; empty ones for a decoder-only model
  Ragged prefixes;         // how each target begins
  Ragged shortlists;       // the words of each sentence, ascending, with its end and its prefix; null = all words
  const int32_t* limits;   // target words at most, the end of sentence included
  float* attention;        // with beam 1, or none: for each sentence limit x source weights, zeros at first
  Usage* usage;            // written if it is wanted
};

struct Hypothesis {
  std::vector<int32_t> words;      // without the end of sentence
  std::vector<float> log_probs;    // with it
  double log_prob = 0, score = 0;
  bool truncated = false;
};

// A worker and the threads that help it.
struct Crew {
  Crew(const Model& model, int threads) : team(threads), worker(model, team) {}
  Team team;
  Worker worker;
};

// Crews that wait for the next search: making one, and the memory that comes with it, takes as long as a short sentence.
class Crews {
 public:
  std::unique_ptr<Crew> take(const Model& model, int threads);
  void give(std::unique_ptr<Crew> crew);

  ~Crews() { forget_the_parents(); }

 private:
  void forget_the_parents();

  std::mutex mutex_;
  std::vector<std::unique_ptr<Crew>> idle_;
  int process_ = getpid();
};

// One list a sentence, best first.  `stop` may be set at any time, by another thread: then std::runtime_error, as where
// the model's numbers are not finite.
std::vector<std::vector<Hypothesis>> search(const Model& model, Crews& crews, const Request& request, const int32_t* stop);

}  // namespace dragoman
