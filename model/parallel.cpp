#include "model/parallel.h"

#include <ATen/Parallel.h>
#include <c10/core/InferenceMode.h>
#include <omp.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstring>
#include <exception>
#include <utility>

namespace kvc {
namespace {

thread_local int planned = 0;  // 0: as many as ATen has

// While alive, planned_threads() of this thread.
class Planned {
 public:
  explicit Planned(int count) : before_(std::exchange(planned, count)) {}
  ~Planned() { planned = before_; }
  Planned(const Planned&) = delete;
  Planned& operator=(const Planned&) = delete;

 private:
  int before_;
};

// at::parallel_for, its threads in the caller's inference mode, as a tensor that was made in it is changed in it alone, and
// with the caller's planned_threads().
template <typename Body>
void on_threads(std::int64_t count, std::int64_t grain, const Body& body) {
  const bool inference = c10::InferenceMode::is_enabled();
  const int of_caller = planned_threads();
  at::parallel_for(0, count, grain, [&](std::int64_t begin, std::int64_t end) {
    const c10::InferenceMode mode(inference);
    const Planned threads(of_caller);
    body(begin, end);
  });
}

// That find a piece to begin with.
std::int64_t threads_for(std::int64_t count, std::int64_t piece) {
  return at::in_parallel_region()
             ? 1
             : std::min<std::int64_t>(at::get_num_threads(), (count + piece - 1) / piece);
}

}  // namespace

int planned_threads() { return planned > 0 ? planned : at::get_num_threads(); }

FewerThreads::FewerThreads(int count)
    : before_(at::get_num_threads()), planned_before_(std::exchange(planned, planned_threads())) {
  if (count < before_) {
    at::set_num_threads(std::max(count, 1));
  }
}

FewerThreads::~FewerThreads() {
  planned = planned_before_;
  if (at::get_num_threads() != before_) {
    at::set_num_threads(before_);
  }
}

AllThreads::AllThreads() : before_(at::get_num_threads()) {
  if (planned_threads() > before_ && !at::in_parallel_region()) {
    at::set_num_threads(planned_threads());
  }
}

AllThreads::~AllThreads() {
  if (!at::in_parallel_region() && at::get_num_threads() != before_) {
    at::set_num_threads(before_);
  }
}

void parallel_pieces(std::int64_t count, std::int64_t grain,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  on_threads(count, grain, body);
}

void parallel_chunks(std::int64_t count, std::int64_t chunk,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::int64_t threads = threads_for(count, chunk);
  if (threads <= 1) {
    return body(0, count);
  }
  std::atomic<std::int64_t> next = 0;
  on_threads(threads, 1, [&](std::int64_t, std::int64_t) {
    for (std::int64_t first = next.fetch_add(chunk); first < count; first = next.fetch_add(chunk)) {
      body(first, std::min(first + chunk, count));
    }
  });
}

void parallel_shares(std::int64_t count, std::int64_t smallest,
                     const std::function<void(std::int64_t, std::int64_t)>& body) {
  const std::int64_t threads = threads_for(count, smallest);
  if (threads <= 1) {
    return body(0, count);
  }
  std::atomic<std::int64_t> next = 0;
  on_threads(threads, 1, [&](std::int64_t, std::int64_t) {
    std::int64_t first = next, share = 0;
    while (first < count) {
      share = std::max<std::int64_t>(1, (count - first) / (2 * threads) / smallest) * smallest;
      if (next.compare_exchange_weak(first, first + share)) {
        body(first, std::min(first + share, count));
        first = next;
      }
    }
  });
}

void parallel_phases(std::int64_t max_threads, const std::vector<Phase>& phases) {
  if (std::min<std::int64_t>(max_threads, at::get_num_threads()) <= 1 || at::in_parallel_region()) {
    for (const Phase& phase : phases) {
      phase(0, 1);
    }
    return;
  }
  const bool inference = c10::InferenceMode::is_enabled();
  std::exception_ptr failure;
  std::atomic<bool> has_failed = false;
#pragma omp parallel  // of as many threads as ATen's loops: other teams would have to be made anew
  {
    const c10::InferenceMode mode(inference);
    const std::int64_t threads = std::min<std::int64_t>(max_threads, omp_get_num_threads());
    const std::int64_t thread = omp_get_thread_num();
    for (const Phase& phase : phases) {
      try {
        if (thread < threads && !has_failed) {
          phase(thread, threads);
        }
      } catch (...) {
        if (!has_failed.exchange(true)) {
          failure = std::current_exception();
        }
      }
#pragma omp barrier
    }
  }
  if (failure) {
    std::rethrow_exception(failure);
  }
}

void copy_in_parallel(void* to, const void* from, std::size_t bytes) {
  constexpr std::int64_t kLeastBytes = std::int64_t{1} << 22;  // of a thread
  parallel_pieces(static_cast<std::int64_t>(bytes), kLeastBytes,
                  [&](std::int64_t begin, std::int64_t end) {
                    std::memcpy(static_cast<std::byte*>(to) + begin,
                                static_cast<const std::byte*>(from) + begin,
                                static_cast<std::size_t>(end - begin));
                  });
}

}  // namespace kvc
