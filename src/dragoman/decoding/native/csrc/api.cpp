// The C interface that dragoman/decoding/native/library.py declares for ctypes.
//
// No exception crosses it: functions with an `error` argument return a Status and write a message of up to ERROR_SIZE
// bytes.  Every argument that could cause an access outside an array is checked here.  Python checks the same first and
// reports all problems of a request at once.
#include <algorithm>
#include <map>
#include <memory>
#include <mutex>
#include <string>

#include "amx.h"
#include "api_checks.h"
#include "beam_search.h"
#include "output_projection.h"
#include "shortlist.h"

using namespace dragoman;

namespace {

// The decoder step by step, for a search implemented in Python.  The sizes are those passed to dragoman_session_open.
struct Session {
  Session(const Model& m, int threads) : model(m), pool(threads), runner(m, pool) {}
  const Model& model;
  ThreadPool pool;
  ModelRunner runner;
  int target_slots = 0, target_length = 0, source_slots = 0, source_length = 0;
  std::vector<char> encoded;  // by source slot
  std::mutex in_use;
  const int process = process_id();
};

// The open sessions by id.  Ids are never used again, so a closed session cannot be used by mistake.
class Sessions {
 public:
  int64_t add(std::shared_ptr<Session> session) {
    std::lock_guard<std::mutex> lock(mutex_);
    sessions_[++last_id_] = std::move(session);
    return last_id_;
  }

  std::shared_ptr<Session> find(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sessions_.find(id);
    return found == sessions_.end() ? nullptr : found->second;
  }

  std::shared_ptr<Session> remove(int64_t id) {
    std::lock_guard<std::mutex> lock(mutex_);
    const auto found = sessions_.find(id);
    if (found == sessions_.end()) return nullptr;
    std::shared_ptr<Session> session = std::move(found->second);
    sessions_.erase(found);
    return session;
  }

 private:
  std::mutex mutex_;
  std::map<int64_t, std::shared_ptr<Session>> sessions_;
  int64_t last_id_ = 0;
};

// Never destroyed: when a forked process exits, the threads of the sessions do not exist and cannot be joined.
Sessions& sessions() {
  static Sessions* const instance = new Sessions;
  return *instance;
}

// Call f(session) with exclusive use of the session.
template <typename F>
void with_session(int64_t id, const F& f) {
  const std::shared_ptr<Session> session = sessions().find(id);
  if (session == nullptr) refuse("session " + std::to_string(id) + " is not open");
  const std::unique_lock<std::mutex> lock(session->in_use, std::try_to_lock);
  if (!lock.owns_lock()) {
    refuse("session " + std::to_string(id) + " is in use by another thread; open one session per thread");
  }
  f(*session);
}

}  // namespace

extern "C" {

// ---------------------------------------------------------------------------------------------------------------
// models

// Read a packed model and return its handle, or null.
void* dragoman_model_open(const char* path, char* error) {
  ModelHandle* handle = nullptr;
  guarded(error, [&] { handle = new ModelHandle(path); });
  return handle;
}

void dragoman_model_close(void* model) { delete static_cast<ModelHandle*>(model); }

// sizes (4,): source vocabulary, target vocabulary, positions, 1 if the model has an encoder.
void dragoman_model_sizes(const void* model, int32_t* sizes) {
  const Header& h = model_of(model).header();
  sizes[0] = h.src_vocab;
  sizes[1] = h.tgt_vocab;
  sizes[2] = h.max_positions;
  sizes[3] = h.encoder_layers > 0;
}

// Return the content of the file that was read, valid while the model is open.
const char* dragoman_model_content(const void* model, int64_t* size) {
  const FileContent& file = model_of(model).file();
  *size = static_cast<int64_t>(file.size());
  return file.data();
}

// Whether models packed in bfloat16 can be opened.
int dragoman_supports_bfloat16() { return supports_bf16(); }

// Version of the functions and structures of this file, as in library.py: a library of other sources is refused.
int dragoman_interface() { return 2; }

// Whether models packed in int8 are multiplied in the tile registers of AMX.
int dragoman_supports_amx() { return supports_amx(); }

// ---------------------------------------------------------------------------------------------------------------
// search

// The shortlists of `count` sentences: the frequent tokens, the lists of all source tokens, and `required` tokens.
// ids: null, or receives the tokens of each sentence in ascending order.  offsets (count + 1,): receives their offsets.
int dragoman_shortlists(const void* model, const ShortlistTable* table, const RaggedArray* sources,
                        const RaggedArray* required, int count, int32_t* ids, int64_t* offsets, char* error) {
  return guarded(error, [&] {
    const Header& h = model_of(model).header();
    require(count >= 0, "the number of sentences must not be negative");
    check_ragged(*sources, count, table->source_size, "source token");
    check_ragged(*required, count, h.tgt_vocab, "required token");
    check_ids(table->frequent, table->frequent_count, h.tgt_vocab, "frequent token");
    TokenSet tokens(h.tgt_vocab);
    offsets[0] = 0;
    for (int i = 0; i < count; ++i) {
      tokens.add(table->frequent, table->frequent_count);
      for (int64_t s = sources->offsets[i]; s < sources->offsets[i + 1]; ++s) {
        const int32_t* start = table->starts + sources->ids[s];
        require_range("start of a list", start[0], 0, table->id_count);
        require_range("end of a list", start[1], start[0], table->id_count);
        check_ids(table->ids + start[0], start[1] - start[0], h.tgt_vocab, "listed token");
        tokens.add(table->ids + start[0], start[1] - start[0]);
      }
      tokens.add(required->ids + required->offsets[i], row_length(*required, i));
      offsets[i + 1] = offsets[i] + tokens.take(ids == nullptr ? nullptr : ids + offsets[i]);
    }
  });
}

// Search all sentences of a request.
// stop: set to 1 by another thread to interrupt the search.
// tokens, log_probs: `limit` elements per hypothesis, nbest hypotheses per sentence, concatenated.
// lengths, total_log_probs, scores, truncated: (count, nbest).  lengths: tokens without the end of sentence; -1 if
// there is no such hypothesis.
int dragoman_search(void* model, const SearchRequest* request, const int32_t* stop, int32_t* tokens, float* log_probs,
                    int32_t* lengths, double* total_log_probs, double* scores, int32_t* truncated, char* error) {
  return guarded(error, [&] {
    ModelHandle& handle = *static_cast<ModelHandle*>(model);
    check_request(handle.model.header(), *request);
    const auto results = beam_search(handle.model, handle.contexts, *request, stop);
    const int nbest = request->settings.nbest;
    int64_t offset = 0;
    for (int i = 0; i < request->count; ++i) {
      const auto& hypotheses = results[static_cast<size_t>(i)];
      for (int n = 0; n < nbest; ++n, offset += request->limits[i]) {
        const int64_t index = static_cast<int64_t>(i) * nbest + n;
        lengths[index] = -1;
        if (n >= static_cast<int>(hypotheses.size())) continue;
        const Hypothesis& h = hypotheses[static_cast<size_t>(n)];
        lengths[index] = static_cast<int32_t>(h.tokens.size());
        std::copy(h.tokens.begin(), h.tokens.end(), tokens + offset);
        std::copy(h.log_probs.begin(), h.log_probs.end(), log_probs + offset);
        total_log_probs[index] = h.log_prob;
        scores[index] = h.score;
        truncated[index] = h.truncated;
      }
    }
  });
}

// -------------------------------------------------------------------------------------------------------------
// sessions

// Open a session with `target_slots` hypotheses of up to `target_length` tokens and `source_slots` sources of up to
// `source_length` tokens, and write its id.  One thread at a time may use it.
int dragoman_session_open(const void* model, int threads, int target_slots, int target_length, int source_slots,
                          int source_length, int64_t* session, char* error) {
  return guarded(error, [&] {
    const Model& m = model_of(model);
    const Header& h = m.header();
    require_range("threads", threads, 1, MAX_THREADS);
    require_range("target slots", target_slots, 1, MAX_SLOTS);
    require_range("source slots", source_slots, 1, MAX_SLOTS);
    require_range("target length", target_length, 1, h.max_positions);
    require_range("source length", source_length, 0, h.max_positions);
    auto opened = std::make_shared<Session>(m, threads);
    opened->target_slots = target_slots;
    opened->target_length = target_length;
    opened->source_slots = source_slots;
    opened->source_length = source_length;
    opened->encoded.assign(static_cast<size_t>(source_slots), h.encoder_layers == 0);
    opened->runner.reserve(std::vector<int>(static_cast<size_t>(target_slots), target_length),
                           std::vector<int>(static_cast<size_t>(source_slots), source_length));
    *session = sessions().add(std::move(opened));
  });
}

// Close a session; a running call finishes first.
void dragoman_session_close(int64_t session) {
  std::shared_ptr<Session> closed = sessions().remove(session);
  // A forked process inherits the sessions of its parent without their threads, which cannot be joined: leak the
  // session.
  if (closed != nullptr && closed->process != process_id()) new std::shared_ptr<Session>(std::move(closed));
}

// Encode `count` sources.  tokens: concatenated; lengths, source_slots: (count,).
int dragoman_session_encode(int64_t session, const int32_t* tokens, const int32_t* lengths, const int32_t* source_slots,
                            int count, char* error) {
  return guarded(error, [&] {
    with_session(session, [&](Session& s) {
      const Header& h = s.model.header();
      require(h.encoder_layers > 0, "the model has no encoder");
      int64_t total = 0;
      for (int i = 0; i < count; ++i) {
        require_range("source length", lengths[i], 1, s.source_length);
        require_range("source slot", source_slots[i], 0, s.source_slots - 1);
        total += lengths[i];
      }
      check_ids(tokens, total, h.src_vocab, "source token");
      s.runner.encode(tokens, lengths, source_slots, count);
      for (int i = 0; i < count; ++i) s.encoded[static_cast<size_t>(source_slots[i])] = 1;
    });
  });
}

// Run one step.  rows (count, 4): token, position, target slot and source slot.  log_probs: (count, target vocabulary).
int dragoman_session_step(int64_t session, const int32_t* rows, int count, float* log_probs, char* error) {
  return guarded(error, [&] {
    with_session(session, [&](Session& s) {
      require_range("rows", count, 1, s.target_slots);
      std::vector<StepRow> step_rows;
      std::vector<char> in_use(static_cast<size_t>(s.target_slots), 0);
      for (int i = 0; i < count; ++i) {
        step_rows.push_back({rows[4 * i], rows[4 * i + 1], rows[4 * i + 2], rows[4 * i + 3]});
        const StepRow& r = step_rows.back();
        require_range("target token", r.token, 0, s.model.header().tgt_vocab - 1);
        require_range("position", r.position, 0, s.target_length - 1);
        require_range("target slot", r.target_slot, 0, s.target_slots - 1);
        require_range("source slot", r.source_slot, 0, s.source_slots - 1);
        // Rows are processed in parallel: two rows in one slot would race.
        require(in_use[static_cast<size_t>(r.target_slot)]++ == 0, "two rows of a step use the same target slot");
        require(s.encoded[static_cast<size_t>(r.source_slot)] != 0, "the source slot has not been encoded");
      }
      s.runner.step(step_rows.data(), count);
      all_log_probs(s.runner, log_probs);
    });
  });
}

// Copy the first `length` positions of a target slot to another one.
int dragoman_session_copy(int64_t session, int from, int to, int length, char* error) {
  return guarded(error, [&] {
    with_session(session, [&](Session& s) {
      require_range("target slot", from, 0, s.target_slots - 1);
      require_range("target slot", to, 0, s.target_slots - 1);
      require_range("length", length, 0, s.target_length);
      if (from != to) s.runner.copy_slot(from, to, length);
    });
  });
}

// Return the memory of a session in bytes, 0 if it is not open.
int64_t dragoman_session_bytes(int64_t session) {
  const std::shared_ptr<Session> opened = sessions().find(session);
  if (opened == nullptr) return 0;
  const std::lock_guard<std::mutex> lock(opened->in_use);
  return static_cast<int64_t>(opened->runner.capacity_bytes());
}

}  // extern "C"
