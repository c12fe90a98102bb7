// The plain C interface, as Python's ctypes calls it.  Nothing throws across it: 0 is good, else `error` says what is wrong.
// Whatever could read or write outside of an array is refused here; Python has checked the same and says it better.
#include <algorithm>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <new>
#include <stdexcept>
#include <string>

#include "search.h"
#include "words.h"

using namespace dragoman;

namespace {

constexpr int ERROR_ROOM = 512;

// What the numbers that come back mean.
enum Outcome { good = 0, wrong_call = 1, failed = 2, no_memory = 3 };

template <typename F>
int guarded(char* error, const F& f) {
  const auto say = [&](const char* what, Outcome outcome) {
    std::strncpy(error, what, ERROR_ROOM - 1);
    error[ERROR_ROOM - 1] = 0;
    return outcome;
  };
  try {
    f();
    return good;
  } catch (const std::invalid_argument& e) {
    return say(e.what(), wrong_call);
  } catch (const std::bad_alloc&) {
    return say("out of memory; ask for fewer rows at once", no_memory);
  } catch (const std::exception& e) {
    return say(e.what(), failed);
  } catch (...) {
    return say("unknown failure", failed);
  }
}

[[noreturn]] void refuse(const std::string& what) { throw std::invalid_argument(what); }

void require(bool right, const char* what) {
  if (!right) refuse(what);
}

void check_ids(const int32_t* ids, int64_t count, int vocab, const char* whose) {
  for (int64_t i = 0; i < count; ++i)
    if (ids[i] < 0 || ids[i] >= vocab) refuse(std::string(whose) + " id " + std::to_string(ids[i]) + " of " + std::to_string(vocab) + " words");
}

void check_ragged(const Ragged& rows, int count, int vocab, const char* whose) {
  if (rows.offsets == nullptr || rows.offsets[0] != 0) refuse(std::string(whose) + " offsets must begin with 0");
  for (int i = 0; i < count; ++i)
    if (rows.offsets[i + 1] < rows.offsets[i]) refuse(std::string(whose) + " offsets must not fall");
  check_ids(rows.ids, rows.offsets[count], vocab, whose);
}

template <typename F>
void check_shortlist(const Request& r, int sentence, const F& refuse_sentence) {
  const auto row = [&](const Ragged& rows, int place) { return rows.ids + rows.offsets[sentence + place]; };
  const int32_t *begin = row(r.shortlists, 0), *end = row(r.shortlists, 1);
  if (std::adjacent_find(begin, end, std::greater_equal<int32_t>()) != end) refuse_sentence("a shortlist that does not rise; give each id once, in ascending order");
  const auto has = [&](int32_t word) { return std::binary_search(begin, end, word); };
  if (!has(r.settings.eos)) refuse_sentence("a shortlist without the end of sentence");
  if (!std::all_of(row(r.prefixes, 0), row(r.prefixes, 1), has)) refuse_sentence("a shortlist without a word of the prefix");
}

void check(const Header& h, const Request& r) {
  const Settings& s = r.settings;
  if (r.count < 0) refuse("a negative number of sentences");
  if (s.beam < 1 || s.beam > 1 << 12 || s.nbest < 1 || s.nbest > s.beam) refuse("beam " + std::to_string(s.beam) + ", n-best " + std::to_string(s.nbest));
  if (s.rows < s.beam || s.rows > 1 << 16) refuse(std::to_string(s.rows) + " rows at once, beam " + std::to_string(s.beam));
  if (s.threads < 1 || s.threads > 1024) refuse(std::to_string(s.threads) + " threads");
  if (r.attention != nullptr && (s.beam != 1 || h.encoder_layers == 0)) refuse("attention is given with beam 1 and an encoder");
  if (s.min_length < 0 || s.no_repeat_ngram < 0 || !(s.alpha >= 0)) refuse("a negative setting");
  for (const int32_t id : {s.bos, s.eos, s.pad})
    if (id < 0 || id >= h.tgt_vocab) refuse("a special word that is none of the target's");
  const bool encodes = h.encoder_layers > 0;
  check_ragged(r.sources, r.count, encodes ? h.src_vocab : 1, "source");
  check_ragged(r.prefixes, r.count, h.tgt_vocab, "prefix");
  if (r.shortlists.offsets != nullptr) check_ragged(r.shortlists, r.count, h.tgt_vocab, "shortlist");
  for (int64_t i = 0; i < r.prefixes.offsets[r.count]; ++i)
    if (const int32_t id = r.prefixes.ids[i]; id == s.bos || id == s.eos || id == s.pad) refuse("a prefix with padding, begin or end");
  for (int i = 0; i < r.count; ++i) {
    const int64_t source = r.sources.offsets[i + 1] - r.sources.offsets[i], prefix = r.prefixes.offsets[i + 1] - r.prefixes.offsets[i];
    const auto refuse_sentence = [&](const std::string& what) { refuse("sentence " + std::to_string(i + 1) + ": " + what); };
    if (encodes ? source == 0 : source != 0) refuse_sentence(std::to_string(source) + " source words");
    if (r.shortlists.offsets != nullptr) check_shortlist(r, i, refuse_sentence);
    if (source > h.max_positions)
      refuse_sentence(std::to_string(source) + " source words, the packed model has " + std::to_string(h.max_positions) + " positions");
    if (r.limits[i] <= prefix || r.limits[i] <= s.min_length || r.limits[i] > h.max_positions)
      refuse_sentence("a limit of " + std::to_string(r.limits[i]) + " words, with " + std::to_string(prefix) + " in the prefix, at least " +
                      std::to_string(s.min_length) + " asked for, and " + std::to_string(h.max_positions) + " positions");
  }
}

// What Python holds.
struct Opened {
  explicit Opened(const char* path) : model(path) {}
  Model model;
  Crews crews;  // after the model, so that they go first
};

const Model& model_of(const void* opened) { return static_cast<const Opened*>(opened)->model; }

// A model at work for a search written elsewhere: it keeps what the rows are allowed to be.  One call at a time uses it.
struct Session {
  Session(const Model& m, int threads) : model(m), team(threads), worker(m, team) {}
  const Model& model;
  Team team;
  Worker worker;
  int slots = 0, capacity = 0, sentences = 0, source = 0;
  std::vector<char> known;
  std::mutex in_use;
  const int process = getpid();
};

// The open sessions by number.  A caller has the number only, so that one that was ended cannot be used again.
class Sessions {
 public:
  int64_t add(std::shared_ptr<Session> session) {
    std::lock_guard<std::mutex> lock(mutex_);
    open_[++last_] = std::move(session);
    return last_;
  }
  std::shared_ptr<Session> at(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(number);
    return found == open_.end() ? nullptr : found->second;
  }
  std::shared_ptr<Session> remove(int64_t number) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = open_.find(number);
    if (found == open_.end()) return nullptr;
    std::shared_ptr<Session> session = std::move(found->second);
    open_.erase(found);
    return session;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Session>> open_;
  int64_t last_ = 0;
};

// Never destroyed: at the end of a forked process the threads of its sessions are not there to be joined.
Sessions& sessions() {
  static Sessions* const all = new Sessions;
  return *all;
}

// f(session), alone; refuses a session that is not open or that another thread uses.
template <typename F>
void with_session(int64_t number, const F& f) {
  const std::shared_ptr<Session> session = sessions().at(number);
  if (session == nullptr) refuse("session " + std::to_string(number) + " is not open");
  const std::unique_lock<std::mutex> alone(session->in_use, std::try_to_lock);
  if (!alone.owns_lock()) refuse("this session is in use by another thread; give each thread a session of its own");
  f(*session);
}

}  // namespace

extern "C" {

void* dragoman_open(const char* path, char* error) {
  Opened* opened = nullptr;
  guarded(error, [&] { opened = new Opened(path); });
  return opened;
}

void dragoman_close(void* model) { delete static_cast<Opened*>(model); }

// words, log_probs: room for nbest * limit of each sentence, one behind the other; lengths: words without the end, -1
// where there is no such hypothesis; log_prob, score, truncated: one for each of count * nbest.
int dragoman_search(void* model, const Request* request, const int32_t* stop, int32_t* words, float* log_probs, int32_t* lengths,
                    double* log_prob, double* score, int32_t* truncated, char* error) {
  return guarded(error, [&] {
    Opened& opened = *static_cast<Opened*>(model);
    check(opened.model.sizes(), *request);
    const auto found = search(opened.model, opened.crews, *request, stop);
    const int nbest = request->settings.nbest;
    int64_t at = 0;
    for (int i = 0; i < request->count; ++i)
      for (int n = 0; n < nbest; ++n, at += request->limits[i]) {
        const int64_t place = static_cast<int64_t>(i) * nbest + n;
        const auto& hypotheses = found[static_cast<size_t>(i)];
        lengths[place] = -1;
        if (n >= static_cast<int>(hypotheses.size())) continue;
        const Hypothesis& h = hypotheses[static_cast<size_t>(n)];
        lengths[place] = static_cast<int32_t>(h.words.size());
        std::copy(h.words.begin(), h.words.end(), words + at);
        std::copy(h.log_probs.begin(), h.log_probs.end(), log_probs + at);
        log_prob[place] = h.log_prob, score[place] = h.score, truncated[place] = h.truncated;
      }
  });
}

// Sizes that a caller needs: words of the source and of the target, positions, and whether there is an encoder.
void dragoman_sizes(const void* model, int32_t* four) {
  const Header& h = model_of(model).sizes();
  four[0] = h.src_vocab, four[1] = h.tgt_vocab, four[2] = h.max_positions, four[3] = h.encoder_layers > 0;
}

// The bytes of the file that the model was read from, as long as the model is open.
const char* dragoman_content(const void* model, int64_t* bytes) {
  const Content& file = model_of(model).file();
  *bytes = static_cast<int64_t>(file.bytes());
  return file.data();
}

// A session: rows for a search written elsewhere.  Each belongs to one thread at a time; the number is never used again.
int dragoman_begin(const void* model, int threads, int slots, int capacity, int sentences, int source, int64_t* session, char* error) {
  return guarded(error, [&] {
    const Model& m = model_of(model);
    require(threads >= 1 && threads <= 1024 && slots >= 1 && slots <= 1 << 16 && sentences >= 1 && sentences <= 1 << 16,
            "threads must be 1 to 1024, slots and sentences 1 to 65536");
    require(capacity >= 1 && capacity <= m.sizes().max_positions && source >= 0 && source <= m.sizes().max_positions,
            "a length of 0, or beyond the positions of the packed model");
    auto made = std::make_shared<Session>(m, threads);
    made->slots = slots, made->capacity = capacity, made->sentences = sentences, made->source = source;
    made->known.assign(static_cast<size_t>(sentences), m.sizes().encoder_layers == 0);
    made->worker.reserve(std::vector<int>(static_cast<size_t>(slots), capacity), std::vector<int>(static_cast<size_t>(sentences), source));
    *session = sessions().add(std::move(made));
  });
}

// A call that is still at work keeps the session until it is done.  A forked process has the sessions of its parent, but not
// their threads: they cannot be joined.
void dragoman_end(int64_t session) {
  std::shared_ptr<Session> ended = sessions().remove(session);
  if (ended != nullptr && ended->process != getpid()) new std::shared_ptr<Session>(std::move(ended));
}

int dragoman_encode(int64_t session, const int32_t* tokens, const int32_t* lengths, const int32_t* places, int count, char* error) {
  return guarded(error, [&] { with_session(session, [&](Session& s) {
    const Header& h = s.model.sizes();
    require(h.encoder_layers > 0, "a model without an encoder");
    int64_t total = 0;
    for (int i = 0; i < count; ++i) {
      require(lengths[i] >= 1 && lengths[i] <= s.source, "a source of no words, or of more than were announced");
      require(places[i] >= 0 && places[i] < s.sentences, "a place that was not announced");
      total += lengths[i];
    }
    check_ids(tokens, total, h.src_vocab, "source");
    s.worker.encode(tokens, lengths, places, count);
    for (int i = 0; i < count; ++i) s.known[static_cast<size_t>(places[i])] = 1;
  }); });
}

// four: (count, 4) token, position, slot and sentence of each row.  log_probs: (count, tgt_vocab).
int dragoman_step(int64_t session, const int32_t* four, int count, float* log_probs, char* error) {
  return guarded(error, [&] { with_session(session, [&](Session& s) {
    require(count >= 1 && count <= s.slots, "a step of no rows, or of more than there are slots");
    std::vector<Row> rows;
    std::vector<char> taken(static_cast<size_t>(s.slots), 0);
    for (int i = 0; i < count; ++i) {
      rows.push_back({four[4 * i], four[4 * i + 1], four[4 * i + 2], four[4 * i + 3]});
      const Row& r = rows.back();
      check_ids(&r.token, 1, s.model.sizes().tgt_vocab, "target");
      require(r.position >= 0 && r.position < s.capacity, "a position beyond the capacity");
      require(r.slot >= 0 && r.slot < s.slots, "a slot that was not announced");
      require(taken[static_cast<size_t>(r.slot)]++ == 0, "two words at once for one slot");
      require(r.sentence >= 0 && r.sentence < s.sentences && s.known[static_cast<size_t>(r.sentence)] != 0, "a sentence that was not encoded");
    }
    s.worker.step(rows.data(), count);
    all_words(s.worker, log_probs);
  }); });
}

int dragoman_copy(int64_t session, int from, int to, int length, char* error) {
  return guarded(error, [&] { with_session(session, [&](Session& s) {
    require(from >= 0 && from < s.slots && to >= 0 && to < s.slots && length >= 0 && length <= s.capacity, "a copy outside of what was announced");
    if (from != to) s.worker.copy(from, to, length);
  }); });
}

// Memory of a session, 0 where it is not open.
int64_t dragoman_bytes(int64_t session) {
  const std::shared_ptr<Session> open = sessions().at(session);
  if (open == nullptr) return 0;
  const std::lock_guard<std::mutex> alone(open->in_use);
  return static_cast<int64_t>(open->worker.bytes());
}

// Whether a model may be packed in bfloat16.
int dragoman_bfloat16() { return has_bfloat16(); }

}  // extern "C"
