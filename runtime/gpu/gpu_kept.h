// The plain layers of a batch of sequences on a GPU under a token policy. Under a running policy (zeromerge, h2o,
// streamingllm) a layer's rows have the layout of runtime/kernels/cuda/budget_step.h and take constant memory. Under
// snapkv and pyramidkv they are in pages like a plain layer's: the kept rows of a prompt of T tokens end at row T - 1,
// so a generated token's row is its position, and rows before the first kept one have no pages. Under integer types
// these are the exact rows, sinks first, in a ring of pages that follows the text; codes are separate.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "core/kv_plan_bytes.h"
#include "core/token_policy.h"
#include "runtime/gpu/gpu_kept_codes.h"
#include "runtime/gpu/gpu_rows.h"
#include "runtime/gpu/kept_tokens.h"
#include "runtime/kernels/cuda/budget_step.h"

namespace kvc {

// A policy, and the lengths of the sequences' prompts, of which the budget may be a share.
struct GpuPolicy {
  TokenPolicy policy{};
  std::vector<std::int64_t> prompt_tokens{};
};

// Sizes of one layer of a sequence with that capacity.
struct KeptRoom {
  std::int64_t budget = 0, rows = 0, residual_slots = 0;
  bool is_exceeded = false;  // by the prompt
};
KeptRoom kept_room(const KvPlan& plan, const TokenPolicy& policy, int layer,
                   std::int64_t prompt_tokens, std::int64_t capacity);
// For a running policy: plain_layer_bytes(rows), 8 bytes for score and position of every row and KV head if the policy
// ranks tokens, and residual_slots * num_kv_heads * (2 * head_dim + 1) * 4; under integer types the context's keys and
// values are quantised_value_bytes(context) each. For the others: the pages of their rows, under integer types
// coded_layer_bytes(rows).
std::int64_t gpu_kept_bytes(const KvPlan& plan, const TokenPolicy& policy, int layer,
                            std::int64_t prompt_tokens, std::int64_t capacity, KvDtype dtype,
                            std::int64_t page_tokens);

class GpuKept {
 public:
  // A plan of plain layers; dtype: bfloat16 or float16; kv_dtype: the same, or int8 or int4, with a running policy only
  // if every prompt exceeds its budget. Allocates all memory now.
  GpuKept(const KvPlan& plan, const GpuPolicy& policy, at::ScalarType dtype, KvDtype kv_dtype,
          const GpuPages& pages);

  const TokenPolicy& policy() const { return policy_; }
  bool is_running() const { return policy_.is_running(); }
  const KeptRoom& room(int layer, std::size_t sequence) const;
  std::int64_t most_rows() const;  // that any layer of any sequence has room for
  std::int64_t bytes(std::size_t sequence) const;
  void copy(std::size_t from, std::size_t to);
  GpuPageBytes& page_bytes() const { return *page_bytes_; }  // of all caches of the batch

  // Writes a layer's first tokens, in the order of positions, at most its budget.
  void write(int layer, std::size_t sequence, const HeadTokens& tokens);
  // Under a running policy: reads the first `count` tokens, which are all; writes a layer whose budget was exceeded,
  // with its context as codes under integer types.
  HeadTokens read(int layer, std::size_t sequence, std::int64_t count) const;
  void write(int layer, std::size_t sequence, const LaidOutTokens& tokens, StepExecutor& executor);
  // Under the others: writes what a prompt of `num_tokens` keeps as its last rows; key, value [n, num_kv_heads,
  // head_dim].
  void write_last(int layer, std::size_t sequence, std::int64_t num_tokens, const at::Tensor& key,
                  const at::Tensor& value, const RowCoder& coder);
  // Under integer types, when each sequence has num_tokens: codes whole blocks that left the window.
  void code_blocks(const std::vector<std::int64_t>& num_tokens, const RowCoder& coder);

  // For kernels, of all sequences.
  const BudgetCache* caches(int layer) const;
  DeviceRows key_rows(int layer) const { return paged_[index(layer)].key.table(); }
  DeviceRows value_rows(int layer) const { return paged_[index(layer)].value.table(); }
  std::int32_t* first_rows(int layer) const;  // [num_sequences]
  KvDtype kv_dtype() const { return kv_dtype_; }
  bool has_codes() const { return !is_running() && is_integer(kv_dtype_); }
  const GpuKeptCodes& codes(int layer) const { return *paged_[index(layer)].codes; }

 private:
  struct Rows {         // of one layer of one sequence under a running policy
    HeadTokens tokens;  // of KeptRoom::rows
    SlotTokens slots;   // undefined where none are needed
    // The context under integer types, uint8 [num_kv_heads, context, code_row_bytes()]; undefined otherwise.
    at::Tensor key_codes{}, value_codes{};
  };
  struct Paged {
    GpuRows key, value;
    std::vector<std::int64_t> first_rows;  // [num_sequences]
    std::optional<GpuKeptCodes> codes{};
  };
  static std::array<const at::Tensor*, 9> tensors_of(const Rows& rows);
  static std::size_t index(int layer) { return static_cast<std::size_t>(layer); }
  // Coded rows of a running policy's layout, after its sinks.
  std::int64_t coded_context(const KeptRoom& room) const;
  Rows new_rows(const KeptRoom& room) const;
  void add_budgets(int layer);
  void add_pages(int layer, const GpuPages& pages);
  void set_first_row(int layer, std::size_t sequence, std::int64_t row);
  BudgetCache cache_of(const Rows& rows, const KeptRoom& room) const;

  KvPlan plan_;
  TokenPolicy policy_;
  KvDtype kv_dtype_;
  at::TensorOptions numbers_;
  std::shared_ptr<GpuPageBytes> page_bytes_;
  std::vector<std::vector<KeptRoom>> rooms_;  // [num_layers, num_sequences]
  std::vector<std::vector<Rows>> rows_;       // likewise, or empty
  std::vector<at::Tensor> caches_;            // [num_layers] BudgetCache of each sequence
  std::vector<Paged> paged_;                  // [num_layers], or empty
  at::Tensor first_rows_;                     // [num_layers, num_sequences] int32
};

}  // namespace kvc
