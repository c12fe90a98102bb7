// Target phrases that a search must contain, or prefers: dragoman/decoding/search_types.py.
#pragma once

#include <algorithm>
#include <cstdint>
#include <numeric>
#include <vector>

namespace dragoman {

// The phrases of one sentence.
struct Phrases {
  std::vector<std::vector<int32_t>> ids;  // none is empty
  std::vector<uint8_t> inside;            // by token: 1 if it continues a word and may not follow a phrase; or empty
  bool required = false;                  // the target must contain all of them
  float bonus = 0;                        // else: added to the rank of a hypothesis per token of a phrase

  int total() const {
    return std::accumulate(ids.begin(), ids.end(), 0,
                           [](int sum, const auto& phrase) { return sum + static_cast<int>(phrase.size()); });
  }
};

// How much of the phrases a hypothesis contains.
struct PhraseProgress {
  std::vector<char> done;  // by phrase
  int active = -1;         // the phrase that has begun, -1 for none
  int position = 0;        // number of its tokens
  int met = 0;             // tokens of complete phrases and of the one that has begun
  bool complete = false;   // the last token completed a phrase

  // The next token of the phrase that has begun, or the first tokens of all others.
  std::vector<int32_t> wanted(const Phrases& phrases) const {
    if (active >= 0) return {phrases.ids[static_cast<size_t>(active)][static_cast<size_t>(position)]};
    std::vector<int32_t> tokens;
    for (size_t i = 0; i < done.size(); ++i) {
      const int32_t first = phrases.ids[i][0];
      if (done[i] == 0 && std::find(tokens.begin(), tokens.end(), first) == tokens.end()) tokens.push_back(first);
    }
    return tokens;
  }

  // Add a token.  One that does not continue the phrase that has begun abandons it, and may begin another one.
  void add(const Phrases& phrases, int32_t token) {
    complete = false;
    if (active >= 0 && phrases.ids[static_cast<size_t>(active)][static_cast<size_t>(position)] == token) {
      return advance(phrases);
    }
    met -= position;
    active = -1;
    position = 0;
    for (size_t i = 0; i < done.size(); ++i) {
      if (done[i] != 0 || phrases.ids[i][0] != token) continue;
      active = static_cast<int>(i);
      return advance(phrases);
    }
  }

 private:
  void advance(const Phrases& phrases) {
    ++position;
    ++met;
    if (position < static_cast<int>(phrases.ids[static_cast<size_t>(active)].size())) return;
    done[static_cast<size_t>(active)] = 1;
    complete = true;
    active = -1;
    position = 0;
  }
};

}  // namespace dragoman
