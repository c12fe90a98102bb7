// The functions of the C interface for `SearchService`; see api.cpp.
#include <algorithm>
#include <memory>
#include <string>
#include <vector>

#include "api_checks.h"
#include "search_service.h"

using namespace dragoman;

namespace {

// What a service handle points to.
struct ServiceHandle {
  ServiceHandle(const Model& m, const ServiceLimits& limits) : model(m), service(limits_checked(m, limits), limits) {}

  static const Model& limits_checked(const Model& model, const ServiceLimits& limits) {
    const int positions = model.header().max_positions;
    require_range("workers", limits.workers, 1, MAX_THREADS);
    require_range("rows", limits.rows, 1, MAX_SLOTS);
    require_range("source length", limits.source_length, 0, positions);
    require_range("target length", limits.target_length, 1, positions);
    require_range("shortlist size", limits.shortlist_size, 0, model.header().tgt_vocab);
    return model;
  }

  const Model& model;
  SearchService service;
  std::vector<ServiceResult> results;  // of the last wait
  const int process = process_id();
};

ServiceHandle& handle_of(void* service) { return *static_cast<ServiceHandle*>(service); }

void check_against(const ServiceLimits& limits, const SearchRequest& r, bool has_encoder) {
  require_range("beam", r.settings.beam, 1, limits.rows);
  require(r.attention == nullptr, "a service returns no attention weights");
  for (int i = 0; i < r.count; ++i) {
    require_range("source length", row_length(r.sources, i), 0, limits.source_length);
    require_range("limit", target_positions(r, i, has_encoder), 1, limits.target_length);
    if (r.shortlists.offsets != nullptr) {
      require_range("shortlist size", row_length(r.shortlists, i), 1, limits.shortlist_size);
    }
  }
}

}  // namespace

extern "C" {

// Start a service and return its handle, or null.  The model must stay open until the service is closed.
void* dragoman_service_open(const void* model, const ServiceLimits* limits, char* error) {
  ServiceHandle* handle = nullptr;
  guarded(error, [&] { handle = new ServiceHandle(model_of(model), *limits); });
  return handle;
}

// Stop the workers and discard all sentences.  No other call may be running.
void dragoman_service_close(void* service) {
  std::unique_ptr<ServiceHandle> handle(static_cast<ServiceHandle*>(service));
  // A forked process inherits the service of its parent without its threads, which cannot be joined: leak it.
  if (handle->process != process_id()) static_cast<void>(handle.release());
}

// Queue the sentences of a request.  ranks: (count,).  first_id: receives the id of the first sentence.
int dragoman_service_submit(void* service, const SearchRequest* request, const double* ranks, double total_rate,
                            int64_t* first_id, char* error) {
  return guarded(error, [&] {
    ServiceHandle& handle = handle_of(service);
    require(handle.process == process_id(), "the service was started by another process");
    check_request(handle.model.header(), *request);
    check_against(handle.service.limits(), *request, handle.model.header().encoder_layers > 0);
    *first_id = handle.service.submit(*request, ranks, total_rate);
  });
}

void dragoman_service_cancel(void* service, const int64_t* ids, int count) {
  handle_of(service).service.cancel(ids, count);
}

// Sentences that wait, and rows that are being decoded: (2,).
void dragoman_service_load(void* service, int64_t* load) {
  const auto [queued, rows] = handle_of(service).service.load();
  load[0] = queued;
  load[1] = rows;
}

// Write to a file descriptor when results become available; -1: stop.
void dragoman_service_notify(void* service, int descriptor) { handle_of(service).service.notify(descriptor); }

// Wait up to `seconds` for results.  counts (3,): results, hypotheses of all of them, and their tokens.
// Only one thread may wait and collect.
void dragoman_service_wait(void* service, double seconds, int64_t* counts, char* error) {
  ServiceHandle& handle = handle_of(service);
  std::string message;
  handle.results = handle.service.wait(seconds, message);
  fail_with(error, message.c_str(), failed);
  counts[0] = static_cast<int64_t>(handle.results.size());
  counts[1] = counts[2] = 0;
  for (const ServiceResult& result : handle.results) {
    counts[1] += static_cast<int64_t>(result.hypotheses.size());
    for (const Hypothesis& h : result.hypotheses) counts[2] += static_cast<int64_t>(h.log_probs.size());
  }
}

// Write the results of the last wait.  ids, hypotheses: (results,); 0 hypotheses: the search failed.
// times: (results, 2): seconds in the queue and in the batch.  lengths, truncated, total_log_probs, scores:
// (hypotheses,).  tokens, log_probs: (tokens,), the tokens of each hypothesis followed by the end of sentence.
void dragoman_service_collect(void* service, int64_t* ids, int32_t* hypotheses, double* times, int32_t* lengths,
                              int32_t* truncated, double* total_log_probs, double* scores, int32_t* tokens,
                              float* log_probs) {
  ServiceHandle& handle = handle_of(service);
  for (const ServiceResult& result : handle.results) {
    *ids++ = result.id;
    *hypotheses++ = static_cast<int32_t>(result.hypotheses.size());
    *times++ = result.queued;
    *times++ = result.computed;
    for (const Hypothesis& h : result.hypotheses) {
      *lengths++ = static_cast<int32_t>(h.tokens.size());
      *truncated++ = static_cast<int32_t>(h.truncated);
      *total_log_probs++ = h.log_prob;
      *scores++ = h.score;
      tokens = std::copy(h.tokens.begin(), h.tokens.end(), tokens) + 1;
      log_probs = std::copy(h.log_probs.begin(), h.log_probs.end(), log_probs);
    }
  }
  handle.results.clear();
}

}  // extern "C"
