#include "core/channel_pruning.h"

#include <algorithm>
#include <cmath>

#include "core/checked.h"
#include "core/round_up.h"

namespace kvc {

std::int64_t kept_channels(const TokenPolicy& policy, std::int64_t head_dim) {
  const auto dropped = std::llround(policy.pruned_share * static_cast<double>(head_dim));
  return std::max<std::int64_t>(1, head_dim - dropped);
}

std::int64_t pruned_layer_bytes(const KvPlan& plan, const TokenPolicy& policy, std::int64_t rows,
                                std::int64_t pruned_rows, KvDtype dtype, std::int64_t page_tokens) {
  constexpr const char* kSubject = "KV bytes";
  const std::int64_t whole = plain_layer_bytes(plan, rows - pruned_rows, dtype, page_tokens);
  if (pruned_rows == 0) {
    return whole;
  }
  const std::int64_t row_bytes =
      checked_mul(plan.num_kv_heads * bytes_per_element(dtype),
                  kept_channels(policy, plan.head_dim) + plan.head_dim, kSubject);
  const std::int64_t allocated = round_up(pruned_rows, page_tokens);
  return checked_add(checked_add(whole, checked_mul(allocated, row_bytes, kSubject), kSubject),
                     plan.num_kv_heads * ((plan.head_dim + 7) / 8), kSubject);
}

std::int64_t pruned_rows_of(const TokenPolicy& policy, const KvPlan& plan, std::int64_t rows) {
  return kept_channels(policy, plan.head_dim) == plan.head_dim
             ? 0
             : std::max<std::int64_t>(0, rows - policy.window_tokens);
}

}  // namespace kvc
