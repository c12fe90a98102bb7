#include "beam_search.h"

#include <algorithm>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <numeric>
#include <stdexcept>
#include <thread>

#include "scheduler.h"
#include "search_batch.h"

namespace dragoman {
namespace {

bool is_set(const int32_t* stop) { return __atomic_load_n(stop, __ATOMIC_RELAXED) != 0; }

// Decode sentences of the scheduler in one worker until none is left, and return the peak use.
// results: by sentence; each is written by one worker only.
Usage search_worker(ModelRunner& runner, const SearchRequest& request, Scheduler& scheduler,
                    std::vector<std::vector<Hypothesis>>& results, const int32_t* stop) {
  const int beam = request.settings.beam;
  std::vector<int64_t> offsets{0};  // where the attention weights of each sentence begin
  for (int i = 0; request.attention != nullptr && i < request.count; ++i) {
    offsets.push_back(offsets.back() + row_length(request.sources, i) * request.limits[i]);
  }
  std::map<int, Phrases> phrases;  // of the sentences being decoded
  std::vector<int> free_slots;  // source slots; slot p owns the target slots p * beam, ..., p * beam + beam - 1
  runner.reserve(scheduler.target_lengths, scheduler.source_lengths, scheduler.max_shortlist);
  for (int slot = static_cast<int>(scheduler.source_lengths.size()); slot-- > 0;) free_slots.push_back(slot);
  SearchBatch batch(runner);
  Usage in_use{};
  Usage peak{};
  while (!is_set(stop)) {
    while (!free_slots.empty()) {
      const int i = scheduler.next(in_use);
      if (i < 0) break;
      in_use += scheduler.cost(i);
      peak = elementwise_max(peak, in_use);
      const int slot = free_slots.back();
      free_slots.pop_back();
      std::vector<int> target_slots(static_cast<size_t>(beam));
      std::iota(target_slots.begin(), target_slots.end(), slot * beam);
      float* attention = request.attention == nullptr ? nullptr : request.attention + offsets[static_cast<size_t>(i)];
      Sentence sentence = sentence_of(request, i, attention);
      Phrases own = phrases_of(request, i, runner.model().header().tgt_vocab);
      if (!own.ids.empty()) sentence.phrases = &(phrases[i] = std::move(own));
      batch.add(i, sentence, slot, std::move(target_slots));
    }
    if (batch.empty()) break;
    for (FinishedSentence& finished : batch.step()) {
      free_slots.push_back(finished.source_slot);
      in_use -= scheduler.cost(static_cast<int>(finished.id));
      phrases.erase(static_cast<int>(finished.id));
      results[static_cast<size_t>(finished.id)] = std::move(finished.hypotheses);
    }
  }
  return peak;
}

}  // namespace

// With at least as many sentences as threads, each worker has one thread.  With fewer sentences, there is one worker
// per sentence and the threads are divided among the workers.
std::vector<std::vector<Hypothesis>> beam_search(const Model& model, WorkerContextPool& contexts,
                                                 const SearchRequest& request, const int32_t* stop) {
  std::vector<std::vector<Hypothesis>> results(static_cast<size_t>(request.count));
  if (request.count == 0) return results;
  const int threads = request.settings.threads;
  const int workers = std::min(threads, request.count);
  Scheduler scheduler(model, request, workers);
  Usage peak{};
  std::exception_ptr failure;
  std::mutex mutex;
  const auto work = [&](int worker) {
    try {
      // The first workers get one thread more if the threads cannot be divided equally.
      const int pool_size = threads / workers + (worker < threads % workers);
      std::unique_ptr<WorkerContext> context = contexts.acquire(model, pool_size);
      const Usage worker_peak = search_worker(context->runner, request, scheduler, results, stop);
      contexts.release(std::move(context));
      std::lock_guard<std::mutex> lock(mutex);
      peak = elementwise_max(peak, worker_peak);
    } catch (...) {
      std::lock_guard<std::mutex> lock(mutex);
      failure = std::current_exception();
      scheduler.close();  // the other workers only finish what they have begun
    }
  };
  std::vector<std::thread> others;
  others.reserve(static_cast<size_t>(workers));
  try {
    for (int i = 1; i < workers; ++i) others.emplace_back(work, i);
  } catch (const std::exception&) {
    // The system refused to create a thread: the existing workers decode all sentences.
  }
  work(0);
  for (auto& other : others) other.join();
  if (failure) std::rethrow_exception(failure);
  if (is_set(stop)) throw std::runtime_error("interrupted");
  if (request.usage != nullptr) *request.usage = peak;
  return results;
}

}  // namespace dragoman
