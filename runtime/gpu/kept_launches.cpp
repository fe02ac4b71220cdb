#include "runtime/gpu/kept_launches.h"

#include <algorithm>

namespace kvc {
namespace {

// Addresses of a tensor's rows, int64 [rows] where it is.
at::Tensor addresses_of_rows(const at::Tensor& rows) {
  const auto first = reinterpret_cast<std::int64_t>(rows.data_ptr());
  const std::int64_t bytes =
      rows.size(1) * static_cast<std::int64_t>(at::elementSize(rows.scalar_type()));
  return (at::arange(rows.size(0), at::kLong) * bytes + first).to(rows.device());
}

}  // namespace

KeptLaunches::KeptLaunches(const ModelConfig& config, at::ScalarType dtype, const GpuCache& cache,
                           const StepState& state, const StepExecutor& executor,
                           StepLaunches& launches)
    : cache_(cache),
      state_(state),
      launches_(launches),
      dtype_(dtype),
      multiprocessors_(executor.multiprocessors()) {
  if (cache.kept() == nullptr || !cache.kept()->is_running()) {
    return;
  }
  const std::int64_t num_sequences = cache.num_sequences();
  const at::TensorOptions numbers = at::TensorOptions(dtype).device(executor.device());
  const auto zeros = [&](std::int64_t width, const at::TensorOptions& options) {
    return launches.keep(at::zeros({num_sequences, width}, options));
  };
  new_key_ = zeros(config.kv_dim(), numbers);
  new_value_ = zeros(config.kv_dim(), numbers);
  key_table_ = launches.keep(addresses_of_rows(new_key_));
  value_table_ = launches.keep(addresses_of_rows(new_value_));
  first_row_ = zeros(1, numbers.dtype(at::kInt));
  arrived_ = zeros(config.num_kv_heads, numbers.dtype(at::kInt));
  if (cache.kept()->policy().has_scores()) {
    products_stride_ = cache.kept()->most_rows() + 1;
    products_ = zeros(config.num_heads * products_stride_, numbers.dtype(at::kFloat));
  }
}

DeviceRows KeptLaunches::new_rows(const at::Tensor& table, std::int64_t width) const {
  return {.blocks = reinterpret_cast<const void* const*>(table.data_ptr()),
          .max_blocks = 1,
          .block_rows = kScaledRows,
          .width = narrow_size(width),
          .element = device_element(dtype_)};
}

void KeptLaunches::set_stores(int layer, AppendRows& append) const {
  append.first_rows = nullptr;  // a policy's layers see all tokens
  if (!cache_.kept()->is_running()) {
    append.key = cache_.kept()->key_rows(layer);
    append.value = cache_.kept()->value_rows(layer);
    return;
  }
  append.key = new_rows(key_table_, new_key_.size(1));
  append.value = new_rows(value_table_, new_value_.size(1));
  append.rows = launches_.pointer<std::int32_t>(first_row_);
}

void KeptLaunches::add_step(int layer, const DenseAttention& query) {
  const GpuKept& kept = *cache_.kept();
  const TokenPolicy& policy = kept.policy();
  BudgetStep step{.caches = kept.caches(layer),
                  .num_sequences = query.num_sequences,
                  .num_heads = query.num_heads,
                  .num_kv_heads = query.num_kv_heads,
                  .head_dim = query.head_dim,
                  .element = query.element,
                  .query = query.query,
                  .new_key = new_key_.data_ptr(),
                  .new_value = new_value_.data_ptr(),
                  .num_tokens = launches_.pointer<std::int32_t>(state_.positions),
                  .scale = query.scale,
                  .softcap = query.softcap,
                  .alpha = static_cast<float>(policy.alpha),
                  .decay = static_cast<float>(policy.lambda),
                  .demotion = policy.released_step ? Demotion::kReleased : Demotion::kPaper,
                  .partials = query.partials,
                  .arrived = launches_.pointer<std::uint32_t>(arrived_),
                  .products = launches_.pointer<float>(products_),
                  .products_stride = narrow_size(products_stride_),
                  .output = launches_.memory.attended.data_ptr()};
  // No more than there is memory for: of a sequence's whole capacity.
  step.partials.num_parts =
      std::min(query.partials.num_parts,
               attention_parts(multiprocessors_, query.num_sequences * query.num_kv_heads,
                               narrow_size(kept.most_rows())));
  launches_.add(step);
}

void KeptLaunches::set_rows(int layer, DenseAttention& attention) const {
  const GpuKept& kept = *cache_.kept();
  attention.first_rows = kept.first_rows(layer);
  attention.rows[0].key = kept.key_rows(layer);
  attention.rows[0].value = kept.value_rows(layer);
}

}  // namespace kvc
