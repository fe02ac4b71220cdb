#include "runtime/thread_scope.h"

#include <ATen/Parallel.h>

namespace kvc {
namespace {

// About ten parallel regions of 5 us in a layer, against 0.1 ns per multiplication.
constexpr std::int64_t kWorthSharing = 1'500'000;

}  // namespace

ThreadScope::ThreadScope(std::int64_t multiplications_per_layer) {
  if (multiplications_per_layer < kWorthSharing && at::get_num_threads() > 1) {
    restored_ = at::get_num_threads();
    at::set_num_threads(1);
  }
}

ThreadScope::~ThreadScope() {
  if (restored_ > 0) {
    at::set_num_threads(restored_);
  }
}

}  // namespace kvc
