// Greedy and beam search over a changing set of sentences: any number of them advances by one token per step.
//
// A sentence may join before any step, with settings of its own, and its result does not depend on the others.
#pragma once

#include <cstdint>
#include <vector>

#include "model_runner.h"
#include "output_projection.h"
#include "search_types.h"

namespace dragoman {

// A finished or removed sentence: its slots are free again.
struct FinishedSentence {
  int64_t id = 0;
  int source_slot = 0;
  std::vector<int> target_slots;
  std::vector<Hypothesis> hypotheses;  // the n-best list, best first; empty if the sentence was removed
};

class SearchBatch {
 public:
  explicit SearchBatch(ModelRunner& runner) : runner_(runner) {}

  bool empty() const { return active_.empty() && added_.empty(); }

  // Add a sentence, which occupies a source slot and `beam` target slots of the runner until it is finished.
  void add(int64_t id, const Sentence& sentence, int source_slot, std::vector<int> target_slots);

  // Remove the sentences with these ids, if they are not finished.
  std::vector<FinishedSentence> remove(const std::vector<int64_t>& ids);

  // Encode the sources that were added, advance all sentences by one token, and return those that are finished.
  // Throws std::runtime_error if the model's output is not finite.
  std::vector<FinishedSentence> step();

 private:
  // A token of partial hypotheses, which share their beginnings.
  struct Node {
    int32_t token;
    float log_prob;
    int parent;  // index of the token before it, or -1
  };

  struct PartialHypothesis {
    int last = -1;   // index of its last node, or -1
    int length = 0;  // in tokens
    float sum = 0;   // of the log-probabilities
    int target_slot = 0;
    PhraseProgress progress;
  };

  struct Candidate {
    float sum;      // of the log-probabilities
    float rank;     // with the bonus of the phrases
    size_t parent;  // index into the beam
    TokenScore next;
    bool truncated;  // the end of sentence was forced by the length limit
    int met;         // tokens of phrases
  };

  struct ActiveSentence {
    int64_t id = 0;
    Sentence sentence;
    int source_slot = 0;
    int prompt_length = 0;  // positions before the target: those of the source of a model without an encoder
    std::vector<int> target_slots;
    const Shortlist* shortlist = nullptr;
    std::vector<PartialHypothesis> beam;  // empty: finished
    std::vector<Node> nodes;
    std::vector<Hypothesis> finished;
    std::vector<double> ranks;  // of `finished`: their scores, with the bonus of the phrases
  };

  // A finished hypothesis: `h`, and the log-probability of its end.
  static Hypothesis finished_hypothesis(const ActiveSentence& a, const PartialHypothesis& h, float end, bool truncated);
  static std::vector<int32_t> tokens_of(const ActiveSentence& a, const PartialHypothesis& h);
  void encode_added();
  static TokenQuery make_query(const ActiveSentence& a, const PartialHypothesis& h);
  static std::vector<Candidate> candidates_of(const ActiveSentence& a, const TokenScores* scores);
  static bool have_equal_ends(const ActiveSentence& a, const Candidate& x, const Candidate& y);
  static void narrow(std::vector<Candidate>& bank, const ActiveSentence& a, size_t width);
  static std::vector<Candidate> choose(std::vector<Candidate>&& candidates, const ActiveSentence& a);
  static std::vector<Hypothesis> nbest_of(ActiveSentence& a);
  static double last_rank(const ActiveSentence& a);
  static double best_rank(const ActiveSentence& a, const PartialHypothesis& h);
  void expand(ActiveSentence& a, const TokenScores* scores);
  void assign_slots(const ActiveSentence& a, std::vector<PartialHypothesis>& expanded,
                    const std::vector<size_t>& parents, int length);

  ModelRunner& runner_;
  std::vector<ActiveSentence> active_;
  std::vector<ActiveSentence> added_;  // whose sources are not yet encoded
};

}  // namespace dragoman
