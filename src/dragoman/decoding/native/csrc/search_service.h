// A search that never ends: sentences of many callers join the running batches between two steps.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "model.h"
#include "search_batch.h"
#include "search_types.h"

namespace dragoman {

// dragoman/decoding/native/backend.py declares the same struct for ctypes.
struct ServiceLimits {
  int32_t workers;         // threads; each advances a batch of its own
  int32_t rows;            // hypotheses of one worker
  int32_t source_length;   // longest source
  int32_t target_length;   // longest target, including the end of sentence
  int32_t shortlist_size;  // tokens of the largest shortlist, 0: no shortlists
  int64_t memory;          // bytes of caches and shortlists of all workers; one sentence per worker is always admitted
};

struct ServiceResult {
  int64_t id = 0;
  double queued = 0, computed = 0;      // seconds
  std::vector<Hypothesis> hypotheses;  // empty: the search failed, see `error`
};

class SearchService {
 public:
  // Starts the workers.  The model must outlive the service.
  SearchService(const Model& model, const ServiceLimits& limits);
  ~SearchService();

  const ServiceLimits& limits() const { return limits_; }

  // Queue the sentences of a request and return the id of the first one; the others follow.
  // ranks: (count,), relative to the rank of the last admitted sentence.  Sentences are admitted in the order of their
  // ranks, equal ranks in the order of submission: start-time fair queueing (Goyal et al. 1996), if the ranks of a
  // request are the costs of its sentences, accumulated.
  // total_rate: the sum of the rates of all requests.  The rank of new sentences grows by 1 / total_rate per source
  // token that is admitted; otherwise they overtake the later sentences of a request as long as there are new ones.
  // 0: it grows only when a later sentence is admitted.
  int64_t submit(const SearchRequest& request, const double* ranks, double total_rate);

  // Drop sentences whose results are not wanted; they free their rows before the next step.
  void cancel(const int64_t* ids, int count);

  // Write the number 1 (8 bytes) to a file descriptor, such as an eventfd, when results become available; -1: stop.
  void notify(int descriptor);

  // Wait until a result is available, or for `seconds`, and return all of them.
  std::vector<ServiceResult> wait(double seconds, std::string& error);

  // Sentences that wait, and rows that are being decoded.
  std::pair<int64_t, int64_t> load();

 private:
  struct Job;
  struct Worker;
  using Queue = std::map<std::pair<double, int64_t>, std::unique_ptr<Job>>;

  void run(Worker& worker);
  bool is_next_admitted(const Worker& worker) const;
  void admit(Worker& worker);
  std::vector<FinishedSentence> advance(Worker& worker, const std::vector<int64_t>& cancelled);
  void finish(Worker& worker, std::vector<FinishedSentence>&& finished);
  void fail(Worker& worker, const std::string& message);
  void announce(int descriptor);

  const Model& model_;
  const ServiceLimits limits_;
  std::mutex mutex_;  // guards everything below, and the members of workers that say so
  std::condition_variable work_available_, result_available_;
  bool closed_ = false;
  int64_t last_id_ = 0;
  double virtual_time_ = 0;  // the rank 0 of new sentences
  double total_rate_ = 0;
  int64_t queued_rows_ = 0, active_rows_ = 0;
  std::chrono::steady_clock::time_point last_load_{};  // when all workers were busy, or one had several sentences
  Queue queue_;
  std::map<int64_t, double> ranks_;  // of the queued sentences
  std::vector<ServiceResult> results_;
  int descriptor_ = -1;  // see `notify`
  std::string error_;
  std::vector<std::unique_ptr<Worker>> workers_;
};

}  // namespace dragoman
