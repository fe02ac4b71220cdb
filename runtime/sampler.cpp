#include "runtime/sampler.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numeric>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

// Token ids, most probable first; ties to the lower id.
std::vector<std::int64_t> ranked_ids(const float* logits, std::int64_t vocab_size,
                                     std::int64_t keep) {
  std::vector<std::int64_t> ids(static_cast<std::size_t>(vocab_size));
  std::iota(ids.begin(), ids.end(), 0);
  const auto before = [logits](std::int64_t a, std::int64_t b) {
    return logits[a] > logits[b] || (logits[a] == logits[b] && a < b);
  };
  const auto end = ids.begin() + static_cast<std::ptrdiff_t>(std::min(keep, vocab_size));
  std::partial_sort(ids.begin(), end, ids.end(), before);
  ids.erase(end, ids.end());
  return ids;
}

}  // namespace

void check(const SamplingOptions& options) {
  KVC_CHECK_USAGE(options.temperature >= 0 && std::isfinite(options.temperature),
                  "--temperature {}: expected 0 (greedy) or a positive number",
                  options.temperature);
  KVC_CHECK_USAGE(options.top_k >= 0, "--top-k {}: expected 0 (all) or a positive number",
                  options.top_k);
  KVC_CHECK_USAGE(options.top_p > 0 && options.top_p <= 1,
                  "--top-p {}: expected a number in (0, 1]", options.top_p);
}

Sampler::Sampler(const SamplingOptions& options, std::uint64_t seed)
    : options_(options), generator_(seed) {
  check(options);
}

std::int64_t Sampler::next(const at::Tensor& logits) {
  const at::Tensor row = logits.contiguous();
  const float* values = row.const_data_ptr<float>();
  const std::int64_t vocab_size = row.numel();
  KVC_CHECK(std::all_of(values, values + vocab_size,
                        [](float x) { return x < std::numeric_limits<float>::infinity(); }),
            "the model's logits are not finite; does the checkpoint hold NaN or infinity? --dtype "
            "float32 has the widest range");
  if (options_.temperature == 0) {
    return std::max_element(values, values + vocab_size) - values;
  }
  const std::vector<std::int64_t> ids =
      ranked_ids(values, vocab_size, options_.top_k == 0 ? vocab_size : options_.top_k);
  std::vector<double> weights;
  for (const std::int64_t id : ids) {
    weights.push_back(
        std::exp((static_cast<double>(values[id]) - values[ids.front()]) / options_.temperature));
  }
  const double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  double kept = 0;
  std::size_t count = 0;
  while (count < weights.size() && (count == 0 || kept < options_.top_p * total)) {
    kept += weights[count++];
  }
  const double uniform = static_cast<double>(generator_() >> 11) * 0x1.0p-53;  // [0, 1)
  double passed = 0;
  for (std::size_t i = 0; i + 1 < count; ++i) {
    passed += weights[i];
    if (uniform * kept < passed) {
      return ids[i];
    }
  }
  return ids[count - 1];
}

}  // namespace kvc
