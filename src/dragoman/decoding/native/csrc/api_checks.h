// Checks and error handling shared by the functions of the C interface.
#pragma once

#include <cstring>
#include <functional>
#include <new>
#include <stdexcept>
#include <string>

#include "model.h"
#include "search_types.h"
#include "worker_context.h"

namespace dragoman {

constexpr int ERROR_SIZE = 512;
constexpr int MAX_THREADS = 1024;
constexpr int MAX_SLOTS = 1 << 16;
constexpr int MAX_BEAM = 1 << 12;

enum Status { ok = 0, invalid_argument = 1, failed = 2, out_of_memory = 3 };

// Write a message of up to ERROR_SIZE bytes.
inline Status fail_with(char* error, const char* message, Status status) {
  std::strncpy(error, message, ERROR_SIZE - 1);
  error[ERROR_SIZE - 1] = 0;
  return status;
}

// Call f and translate exceptions to a status and a message.
template <typename F>
int guarded(char* error, const F& f) {
  try {
    f();
    return ok;
  } catch (const std::invalid_argument& e) {
    return fail_with(error, e.what(), invalid_argument);
  } catch (const std::bad_alloc&) {
    return fail_with(error, "out of memory; reduce the number of rows", out_of_memory);
  } catch (const std::exception& e) {
    return fail_with(error, e.what(), failed);
  } catch (...) {
    return fail_with(error, "unknown error", failed);
  }
}

[[noreturn]] void refuse(const std::string& message);
void require(bool condition, const char* message);
// "name = value; accepted: low to high"
void require_range(const char* name, int64_t value, int64_t low, int64_t high);
void check_ids(const int32_t* ids, int64_t count, int vocab, const char* name);
void check_ragged(const RaggedArray& rows, int count, int vocab, const char* name, const char* row = "sentence");
// Check everything that could cause an access outside an array.
void check_request(const Header& h, const SearchRequest& r);

// What a model handle points to.
struct ModelHandle {
  explicit ModelHandle(const char* path) : model(path) {}
  Model model;
  WorkerContextPool contexts;  // declared after the model that it uses, so that it is destroyed first
};

inline const Model& model_of(const void* handle) { return static_cast<const ModelHandle*>(handle)->model; }

}  // namespace dragoman
