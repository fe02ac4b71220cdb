// Layers under a token policy, all of whose tokens they see.
#include <algorithm>

#include "runtime/gpu/layer_launches.h"

namespace kvc {
namespace {

class KeptLaunches : public LayerLaunches {
 public:
  explicit KeptLaunches(StepLaunches& launches)
      : launches_(launches), kept_(*launches.cache.kept()) {}

  bool makes_keys(int) const override { return true; }

 protected:
  at::Tensor zeros(std::int64_t width, at::ScalarType dtype) const {
    return launches_.zeros({launches_.num_sequences, width}, dtype);
  }
  // That so few rows of every sequence need.
  int parts_of_rows(std::int64_t most_rows) const {
    return attention_parts(launches_.executor.multiprocessors(),
                           narrow_size(launches_.num_sequences * launches_.config.num_kv_heads),
                           narrow_size(most_rows));
  }

  StepLaunches& launches_;
  const GpuKept& kept_;
};

class RunningLaunches : public KeptLaunches {
 public:
  explicit RunningLaunches(StepLaunches& launches) : KeptLaunches(launches) {
    new_key_ = zeros(launches.config.kv_dim(), launches.model.dtype);
    new_value_ = zeros(launches.config.kv_dim(), launches.model.dtype);
    key_table_ = launches.keep(addresses_of_rows(new_key_));
    value_table_ = launches.keep(addresses_of_rows(new_value_));
    first_row_ = zeros(1, at::kInt);
    arrived_ = zeros(launches.config.num_kv_heads, at::kInt);
    if (kept_.policy().has_scores()) {
      products_stride_ = kept_.most_rows() + 1;
      products_ = zeros(launches.config.num_heads * products_stride_, at::kFloat);
      lowest_ = zeros(launches.config.num_kv_heads * num_parts() *
                          static_cast<std::int64_t>(sizeof(Chosen) / sizeof(std::int32_t)),
                      at::kInt);
    }
  }

  void set_stores(int, AppendRows& append) const override {
    append.first_rows = nullptr;
    append.key = new_rows(key_table_);
    append.value = new_rows(value_table_);
    append.rows = launches_.pointer<std::int32_t>(first_row_);
  }

  void add_attention(int layer, const DenseAttention& query, const DeviceRope&) override {
    const TokenPolicy& policy = kept_.policy();
    BudgetStep step{
        .caches = kept_.caches(layer),
        .num_sequences = query.num_sequences,
        .num_heads = query.num_heads,
        .num_kv_heads = query.num_kv_heads,
        .head_dim = query.head_dim,
        .element = query.element,
        .context = is_integer(kept_.kv_dtype()) ? code_element(kept_.kv_dtype()) : query.element,
        .query = query.query,
        .new_key = new_key_.data_ptr(),
        .new_value = new_value_.data_ptr(),
        .num_tokens = launches_.pointer<std::int32_t>(launches_.state.positions),
        .scale = query.scale,
        .softcap = query.softcap,
        .alpha = static_cast<float>(policy.alpha),
        .decay = static_cast<float>(policy.lambda),
        .demotion = policy.released_step ? Demotion::kReleased : Demotion::kPaper,
        .partials = query.partials,
        .arrived = launches_.pointer<std::uint32_t>(arrived_),
        .lowest = launches_.pointer<Chosen>(lowest_),
        .products = launches_.pointer<float>(products_),
        .products_stride = narrow_size(products_stride_),
        .output = launches_.memory.attended.data_ptr()};
    step.partials.num_parts = std::min(step.partials.num_parts, num_parts());
    launches_.add(step);
  }

 private:
  int num_parts() const {
    return budget_parts(launches_.executor.multiprocessors(), narrow_size(launches_.num_sequences),
                        narrow_size(launches_.config.num_kv_heads), narrow_size(kept_.most_rows()));
  }
  // Addresses of a tensor's rows, int64 [rows] where it is.
  static at::Tensor addresses_of_rows(const at::Tensor& rows) {
    const auto first = reinterpret_cast<std::int64_t>(rows.data_ptr());
    const std::int64_t bytes =
        rows.size(1) * static_cast<std::int64_t>(at::elementSize(rows.scalar_type()));
    return (at::arange(rows.size(0), at::kLong) * bytes + first).to(rows.device());
  }
  DeviceRows new_rows(const at::Tensor& table) const {
    return {.blocks = reinterpret_cast<const void* const*>(table.data_ptr()),
            .max_blocks = 1,
            .block_rows = kScaledRows,
            .width = narrow_size(launches_.config.kv_dim()),
            .element = launches_.element};
  }

  // Shared by all layers in turn: the new token's key and value, [num_sequences, kv_dim] each, their table as blocks of
  // one row, products with the query, [num_sequences, num_heads, products_stride] float32, the number of finished blocks,
  // [num_sequences, num_kv_heads] int32, and the lowest score of each, [num_sequences, num_kv_heads, parts] Chosen.
  at::Tensor new_key_, new_value_, key_table_, value_table_, first_row_, products_, arrived_,
      lowest_;
  std::int64_t products_stride_ = 0;
};

class VotedLaunches : public KeptLaunches {
 public:
  explicit VotedLaunches(StepLaunches& launches) : KeptLaunches(launches) {
    for (DevicePartials& codes : codes_) {
      if (kept_.has_codes()) {
        codes = launches.partials(parts_of_rows(kept_.most_rows()), launches.config.head_dim);
      }
    }
  }

  void set_stores(int layer, AppendRows& append) const override {
    append.first_rows = nullptr;
    append.key = kept_.key_rows(layer);
    append.value = kept_.value_rows(layer);
  }

  void add_attention(int layer, const DenseAttention& query, const DeviceRope& rope) override {
    const KvPlan& plan = launches_.cache.plan();
    DenseAttention attention = query;
    attention.first_rows = kept_.first_rows(layer);
    attention.rows[0] = {.key = kept_.key_rows(layer), .value = kept_.value_rows(layer)};
    if (kept_.has_codes()) {
      attention.partials.num_parts = std::min(
          attention.partials.num_parts, parts_of_rows(exact_capacity(plan, kept_.most_rows())));
    }
    launches_.add(attention);
    std::vector<DevicePartials> sources{attention.partials};
    for (const bool raw : {false, true}) {
      attention.num_rows = kept_.has_codes() ? kept_.codes(layer).num_rows(raw) : nullptr;
      if (attention.num_rows == nullptr) {
        continue;
      }
      attention.first_rows = nullptr;
      attention.rows[0] = {
          .key = kept_.codes(layer).keys(), .value = kept_.codes(layer).values(), .raw_key = raw};
      attention.raw_keys.rope = raw ? rope : DeviceRope{};
      attention.first_position = narrow_size(plan.compression.sink_tokens);
      attention.partials = codes_[raw ? 1 : 0];
      launches_.add(attention);
      sources.push_back(attention.partials);
    }
    launches_.add_combination(sources);
  }

 private:
  DevicePartials codes_[2];  // of codes whose keys are post-RoPE, and before it
};

}  // namespace

std::shared_ptr<LayerLaunches> running_launches(StepLaunches& launches) {
  return std::make_shared<RunningLaunches>(launches);
}

std::shared_ptr<LayerLaunches> voted_launches(StepLaunches& launches) {
  return std::make_shared<VotedLaunches>(launches);
}

}  // namespace kvc
