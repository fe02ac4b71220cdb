#include "runtime/gpu/kept_launches.h"

#include <algorithm>
#include <vector>

#include "runtime/gpu/group_scratch.h"

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
  if (cache.kept() != nullptr && cache.kept()->is_running()) {
    make_step_scratch(config, executor);
  } else if (cache.kept() != nullptr && cache.kept()->has_codes()) {
    make_code_scratch(config, executor);
  }
}

void KeptLaunches::make_step_scratch(const ModelConfig& config, const StepExecutor& executor) {
  const at::TensorOptions numbers = at::TensorOptions(dtype_).device(executor.device());
  const auto zeros = [&](std::int64_t width, const at::TensorOptions& options) {
    return launches_.keep(at::zeros({cache_.num_sequences(), width}, options));
  };
  new_key_ = zeros(config.kv_dim(), numbers);
  new_value_ = zeros(config.kv_dim(), numbers);
  key_table_ = launches_.keep(addresses_of_rows(new_key_));
  value_table_ = launches_.keep(addresses_of_rows(new_value_));
  first_row_ = zeros(1, numbers.dtype(at::kInt));
  arrived_ = zeros(config.num_kv_heads, numbers.dtype(at::kInt));
  if (cache_.kept()->policy().has_scores()) {
    products_stride_ = cache_.kept()->most_rows() + 1;
    products_ = zeros(config.num_heads * products_stride_, numbers.dtype(at::kFloat));
  }
}

void KeptLaunches::make_code_scratch(const ModelConfig& config, const StepExecutor& executor) {
  const std::int64_t blocks = cache_.num_sequences() * config.num_kv_heads;
  const int parts = attention_parts(multiprocessors_, narrow_size(blocks),
                                    narrow_size(cache_.kept()->most_rows()));
  for (DevicePartials& codes : codes_) {
    const PartialScratch scratch =
        make_partials(config, cache_.num_sequences(), parts, config.head_dim, executor);
    for (const at::Tensor& tensor : {scratch.max, scratch.sum, scratch.output}) {
      launches_.keep(tensor);
    }
    codes = scratch.partials;
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
  BudgetStep step{
      .caches = kept.caches(layer),
      .num_sequences = query.num_sequences,
      .num_heads = query.num_heads,
      .num_kv_heads = query.num_kv_heads,
      .head_dim = query.head_dim,
      .element = query.element,
      .context = is_integer(kept.kv_dtype()) ? code_element(kept.kv_dtype()) : query.element,
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
  step.partials.num_parts = parts_of_rows(query, kept.most_rows());
  launches_.add(step);
}

int KeptLaunches::parts_of_rows(const DenseAttention& attention, std::int64_t most_rows) const {
  return std::min(
      attention.partials.num_parts,
      attention_parts(multiprocessors_, attention.num_sequences * attention.num_kv_heads,
                      narrow_size(most_rows)));
}

void KeptLaunches::add_rows(int layer, DenseAttention attention, const DeviceRope& rope) {
  const GpuKept& kept = *cache_.kept();
  attention.first_rows = kept.first_rows(layer);
  attention.rows[0].key = kept.key_rows(layer);
  attention.rows[0].value = kept.value_rows(layer);
  if (kept.has_codes()) {
    attention.partials.num_parts =
        parts_of_rows(attention, exact_capacity(cache_.plan(), kept.most_rows()));
  }
  launches_.add(attention);
  std::vector<DevicePartials> sources{attention.partials};
  for (const bool raw : {false, true}) {
    const std::int32_t* num_rows = kept.has_codes() ? kept.codes(layer).num_rows(raw) : nullptr;
    if (num_rows == nullptr) {
      continue;
    }
    attention.first_rows = nullptr;
    attention.rows[0] = {
        .key = kept.codes(layer).keys(), .value = kept.codes(layer).values(), .raw_key = raw};
    attention.raw_keys.rope = raw ? rope : DeviceRope{};
    attention.first_position = narrow_size(cache_.plan().policy.sink_tokens);
    attention.num_rows = num_rows;
    attention.partials = codes_[raw ? 1 : 0];
    launches_.add(attention);
    sources.push_back(attention.partials);
  }
  launches_.add_combination(sources);
}

void KeptLaunches::add_attention(int layer, const DenseAttention& query, const DeviceRope& rope) {
  cache_.kept()->is_running() ? add_step(layer, query) : add_rows(layer, query, rope);
}

}  // namespace kvc
