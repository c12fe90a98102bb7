#include "search_service.h"

#include <algorithm>
#include <chrono>
#include <iterator>
#include <numeric>
#include <optional>

#include "model_runner.h"
#include "thread_pool.h"

namespace dragoman {
namespace {

using Clock = std::chrono::steady_clock;

// Polls before a helping thread sleeps: fewer than in a search, because other threads of a server need its core.
constexpr int POOL_SPINS = 500;
constexpr std::chrono::milliseconds LOAD_TIME{5};  // after which a worker uses the threads of others that are idle
constexpr std::chrono::seconds IDLE_TIME{1};  // after which a worker returns its memory to the system

double seconds(Clock::duration duration) { return std::chrono::duration<double>(duration).count(); }

std::vector<int32_t> row_of(const RaggedArray& rows, int row) {
  if (rows.offsets == nullptr) return {};
  return {rows.ids + rows.offsets[row], rows.ids + rows.offsets[row + 1]};
}

}  // namespace

// A sentence with copies of its arrays.
struct SearchService::Job {
  int64_t id = 0;
  SearchSettings settings{};
  std::vector<int32_t> source, prefix, shortlist;
  Phrases phrases;
  int limit = 0;
  Usage cost{};
  Clock::time_point submitted, started;
  bool joined = false;  // the batch of its worker

  Sentence view() const {
    Sentence s{};
    s.settings = &settings;
    s.source = source.data();
    s.prefix = prefix.data();
    s.shortlist = shortlist.empty() ? nullptr : shortlist.data();
    s.source_length = static_cast<int>(source.size());
    s.prefix_length = static_cast<int>(prefix.size());
    s.shortlist_length = static_cast<int>(shortlist.size());
    s.limit = limit;
    s.phrases = phrases.ids.empty() ? nullptr : &phrases;
    return s;
  }
};

struct SearchService::Worker {
  Worker(const Model& model, const ServiceLimits& limits)
      : pool(limits.workers, POOL_SPINS), runner(model, pool) {
    reserve(limits);
    reset(limits);
  }

  void reserve(const ServiceLimits& limits) {
    const auto rows = static_cast<size_t>(limits.rows);
    runner.reserve(std::vector<int>(rows, limits.target_length), std::vector<int>(rows, limits.source_length),
                   limits.shortlist_size);
  }

  void reset(const ServiceLimits& limits) {
    batch.emplace(runner);
    in_use = {};
    jobs.clear();
    source_slots.resize(static_cast<size_t>(limits.rows));
    std::iota(source_slots.rbegin(), source_slots.rend(), 0);
    target_slots = source_slots;
  }

  ThreadPool pool;
  ModelRunner runner;
  std::optional<SearchBatch> batch;
  std::vector<int> source_slots, target_slots;  // free ones
  std::map<int64_t, std::unique_ptr<Job>> jobs;
  Usage in_use{};                  // guarded by the mutex of the service
  std::vector<int64_t> cancelled;  // guarded by the mutex of the service
  std::thread thread;
};

SearchService::SearchService(const Model& model, const ServiceLimits& limits) : model_(model), limits_(limits) {
  for (int i = 0; i < limits.workers; ++i) workers_.push_back(std::make_unique<Worker>(model, limits));
  for (auto& worker : workers_) worker->thread = std::thread([this, &worker] { run(*worker); });
}

SearchService::~SearchService() {
  {
    std::lock_guard<std::mutex> lock(mutex_);
    closed_ = true;
  }
  work_available_.notify_all();
  result_available_.notify_all();
  for (auto& worker : workers_) {
    if (worker->thread.joinable()) worker->thread.join();
  }
}

int64_t SearchService::submit(const SearchRequest& request, const double* ranks, double total_rate) {
  std::vector<std::unique_ptr<Job>> jobs;
  const Clock::time_point now = Clock::now();
  for (int i = 0; i < request.count; ++i) {
    auto job = std::make_unique<Job>();
    job->settings = request.settings;
    job->source = row_of(request.sources, i);
    job->prefix = row_of(request.prefixes, i);
    job->shortlist = row_of(request.shortlists, i);
    job->limit = request.limits[i];
    job->phrases = phrases_of(request, i, model_.header().tgt_vocab);
    const int beam = request.settings.beam;
    const auto source = static_cast<int>(job->source.size());
    job->cost = {beam, int64_t{beam} * source,
                 ModelRunner::sentence_bytes(model_, beam, target_positions(request, i, model_.header().encoder_layers > 0),
                                             source, static_cast<int>(job->shortlist.size()))};
    job->submitted = now;
    jobs.push_back(std::move(job));
  }
  std::unique_lock<std::mutex> lock(mutex_);
  total_rate_ = total_rate;
  const int64_t first = last_id_ + 1;
  for (size_t i = 0; i < jobs.size(); ++i) {
    jobs[i]->id = ++last_id_;
    queued_rows_ += jobs[i]->cost.rows;
    const double rank = virtual_time_ + ranks[i];
    ranks_[last_id_] = rank;
    queue_.emplace(std::make_pair(rank, last_id_), std::move(jobs[i]));
  }
  lock.unlock();  // otherwise a worker that wakes at once waits for the lock
  work_available_.notify_all();
  return first;
}

void SearchService::cancel(const int64_t* ids, int count) {
  std::lock_guard<std::mutex> lock(mutex_);
  std::vector<int64_t> active;
  for (int i = 0; i < count; ++i) {
    const auto rank = ranks_.find(ids[i]);
    if (rank == ranks_.end()) {
      active.push_back(ids[i]);
      continue;
    }
    const auto queued = queue_.find({rank->second, ids[i]});
    queued_rows_ -= queued->second->cost.rows;
    queue_.erase(queued);
    ranks_.erase(rank);
  }
  for (auto& worker : workers_) {
    if (worker->in_use.rows > 0) {
      worker->cancelled.insert(worker->cancelled.end(), active.begin(), active.end());
    }
  }
}

void SearchService::notify(int descriptor) {
  std::lock_guard<std::mutex> lock(mutex_);
  descriptor_ = descriptor;
}

std::vector<ServiceResult> SearchService::wait(double timeout, std::string& error) {
  std::unique_lock<std::mutex> lock(mutex_);
  result_available_.wait_for(lock, std::chrono::duration<double>(timeout),
                             [this] { return closed_ || !results_.empty(); });
  error = error_;
  return std::exchange(results_, {});
}

std::pair<int64_t, int64_t> SearchService::load() {
  std::lock_guard<std::mutex> lock(mutex_);
  return {static_cast<int64_t>(queue_.size()), active_rows_};
}

// Whether a worker takes the next sentence.  An idle worker always does.  Otherwise the sentence must fit, and the
// worker must have less than its share of all rows, so that the workers end together.
bool SearchService::is_next_admitted(const Worker& worker) const {
  if (queue_.empty()) return false;
  const Usage& used = worker.in_use;
  if (used.rows == 0) return true;
  const auto workers = static_cast<int64_t>(workers_.size());
  const int64_t share = (queued_rows_ + active_rows_ + workers - 1) / workers;
  const Usage& cost = queue_.begin()->second->cost;
  return used.rows < share && used.rows + cost.rows <= limits_.rows &&
         used.bytes + cost.bytes <= limits_.memory / workers;
}

// Called with the mutex locked.
void SearchService::admit(Worker& worker) {
  while (is_next_admitted(worker)) {
    virtual_time_ = std::max(virtual_time_, queue_.begin()->first.first);
    std::unique_ptr<Job> job = std::move(queue_.begin()->second);
    queue_.erase(queue_.begin());
    ranks_.erase(job->id);
    queued_rows_ -= job->cost.rows;
    active_rows_ += job->cost.rows;
    worker.in_use += job->cost;
    if (total_rate_ > 0) virtual_time_ += static_cast<double>(job->source.size()) / total_rate_;
    job->started = Clock::now();
    worker.jobs[job->id] = std::move(job);
  }
}

void SearchService::run(Worker& worker) {
  std::unique_lock<std::mutex> lock(mutex_);
  while (!closed_) {
    admit(worker);
    if (worker.in_use.rows == 0) {
      worker.cancelled.clear();
      const auto has_work = [this] { return closed_ || !queue_.empty(); };
      if (!work_available_.wait_for(lock, IDLE_TIME, has_work)) {
        worker.runner.release_pages();
        work_available_.wait(lock, has_work);
        worker.reserve(limits_);
      }
      continue;
    }
    const auto busy = std::count_if(workers_.begin(), workers_.end(),
                                    [](const std::unique_ptr<Worker>& w) { return w->in_use.rows > 0; });
    // Under load, a worker is alone for a moment only, and other threads need the other cores.
    const Clock::time_point now = Clock::now();
    if (busy == limits_.workers || worker.jobs.size() > 1) last_load_ = now;
    worker.pool.use(now - last_load_ > LOAD_TIME ? limits_.workers / static_cast<int>(busy) : 1);
    const std::vector<int64_t> cancelled = std::move(worker.cancelled);
    worker.cancelled.clear();
    lock.unlock();
    std::vector<FinishedSentence> finished;
    std::string failure;
    try {
      finished = advance(worker, cancelled);
    } catch (const std::exception& error) {
      failure = error.what();
    }
    lock.lock();
    const bool were_collected = results_.empty();
    if (failure.empty()) {
      finish(worker, std::move(finished));
    } else {
      fail(worker, failure);
    }
    if (were_collected && !results_.empty()) {
      const int descriptor = descriptor_;
      lock.unlock();  // otherwise a reader that wakes at once waits for the lock
      announce(descriptor);
      lock.lock();
    }
  }
}

// Wake the thread that waits for results, or the reader of a descriptor.
void SearchService::announce(int descriptor) {
  if (descriptor < 0) return result_available_.notify_one();
  increment_counter(descriptor);
}

// Let the new sentences join the batch, and advance it by one token.
std::vector<FinishedSentence> SearchService::advance(Worker& worker, const std::vector<int64_t>& cancelled) {
  for (auto& [id, job] : worker.jobs) {
    if (job->joined) continue;
    job->joined = true;
    const int source_slot = worker.source_slots.back();
    worker.source_slots.pop_back();
    const auto first = worker.target_slots.end() - job->settings.beam;
    std::vector<int> target_slots(first, worker.target_slots.end());
    worker.target_slots.erase(first, worker.target_slots.end());
    worker.batch->add(id, job->view(), source_slot, std::move(target_slots));
  }
  std::vector<FinishedSentence> finished;
  if (!cancelled.empty()) finished = worker.batch->remove(cancelled);
  for (FinishedSentence& sentence : worker.batch->step()) finished.push_back(std::move(sentence));
  return finished;
}

// Called with the mutex locked.
void SearchService::finish(Worker& worker, std::vector<FinishedSentence>&& finished) {
  const Clock::time_point now = Clock::now();
  std::vector<ServiceResult> results;
  for (FinishedSentence& sentence : finished) {
    worker.source_slots.push_back(sentence.source_slot);
    worker.target_slots.insert(worker.target_slots.end(), sentence.target_slots.begin(), sentence.target_slots.end());
    const auto found = worker.jobs.find(sentence.id);
    const Job& job = *found->second;
    worker.in_use -= job.cost;
    active_rows_ -= job.cost.rows;
    if (!sentence.hypotheses.empty()) {
      results.push_back({job.id, seconds(job.started - job.submitted), seconds(now - job.started),
                         std::move(sentence.hypotheses)});
    }
    worker.jobs.erase(found);
  }
  std::move(results.begin(), results.end(), std::back_inserter(results_));
}

// The batch cannot continue: its sentences fail.  Called with the mutex locked.
void SearchService::fail(Worker& worker, const std::string& message) {
  error_ = message;
  std::vector<ServiceResult> results;
  for (const auto& [id, job] : worker.jobs) results.push_back({id, 0, 0, {}});
  active_rows_ -= worker.in_use.rows;
  worker.reset(limits_);
  std::move(results.begin(), results.end(), std::back_inserter(results_));
}

}  // namespace dragoman
