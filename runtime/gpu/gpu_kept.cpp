#include "runtime/gpu/gpu_kept.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "core/arithmetic.h"
#include "runtime/gpu/gpu_cache.h"

namespace kvc {
namespace {

template <class T>
T* address(const at::Tensor& tensor) {
  return tensor.defined() ? static_cast<T*>(tensor.data_ptr()) : nullptr;
}

}  // namespace

KeptRoom kept_room(const KvPlan& plan, const TokenPolicy& policy, int layer,
                   std::int64_t prompt_tokens, std::int64_t capacity) {
  KeptRoom room;
  room.budget = layer_budget(policy, prompt_tokens, layer, plan.num_layers());
  room.is_exceeded = prompt_tokens > room.budget;
  if (!policy.is_running()) {
    room.rows = std::min(prompt_tokens, room.budget) + capacity - prompt_tokens;
    return room;
  }
  // One row more than the budget until the layout begins.
  room.rows = room.is_exceeded ? running_layout(policy, room.budget).rows()
                               : std::min(capacity, room.budget + 1);
  room.residual_slots = capacity > room.budget ? policy.residual_slots : 0;
  return room;
}

std::int64_t gpu_kept_bytes(const KvPlan& plan, const TokenPolicy& policy, int layer,
                            std::int64_t prompt_tokens, std::int64_t capacity, KvDtype dtype,
                            std::int64_t page_tokens) {
  const KeptRoom room = kept_room(plan, policy, layer, prompt_tokens, capacity);
  if (!policy.is_running() && is_integer(dtype)) {
    return coded_layer_bytes(plan, room.rows, dtype, page_tokens);
  }
  if (!policy.is_running()) {
    const std::int64_t before = round_down(capacity - room.rows, page_tokens);
    return plain_layer_bytes(plan, round_up(capacity, page_tokens) - before, KvDtype::kFloat16);
  }
  const std::int64_t codes = is_integer(dtype) ? running_layout(policy, room.budget).context : 0;
  return plain_layer_bytes(plan, room.rows - codes, KvDtype::kFloat16) +
         (codes > 0 ? 2 * quantised_value_bytes(codes, plan.kv_dim(), plan.head_dim, dtype) : 0) +
         (policy.has_scores() ? room.rows * plan.num_kv_heads * 8 : 0) +
         room.residual_slots * plan.num_kv_heads * (2 * plan.head_dim + 1) * 4;
}

GpuKept::GpuKept(const KvPlan& plan, const GpuPolicy& policy, at::ScalarType dtype,
                 KvDtype kv_dtype, const GpuPages& pages)
    : plan_(plan),
      policy_(policy.policy),
      kv_dtype_(kv_dtype),
      numbers_(at::TensorOptions(dtype).device(pages.device)),
      page_bytes_(pages.bytes) {
  const auto num_sequences = static_cast<std::int64_t>(policy.prompt_tokens.size());
  first_rows_ = at::zeros({plan.num_layers(), num_sequences}, numbers_.dtype(at::kInt));
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    std::vector<KeptRoom>& rooms = rooms_.emplace_back();
    for (std::size_t i = 0; i < policy.prompt_tokens.size(); ++i) {
      rooms.push_back(kept_room(plan, policy_, layer, policy.prompt_tokens[i], pages.most_rows[i]));
      pages.bytes->add(is_running()
                           ? gpu_kept_bytes(plan, policy_, layer, policy.prompt_tokens[i],
                                            pages.most_rows[i], kv_dtype, pages.page_tokens)
                           : 0);
    }
    is_running() ? add_budgets(layer) : add_pages(layer, pages);
  }
}

std::int64_t GpuKept::coded_context(const KeptRoom& room) const {
  return is_integer(kv_dtype_) ? running_layout(policy_, room.budget).context : 0;
}

GpuKept::Rows GpuKept::new_rows(const KeptRoom& room) const {
  const auto zeros = [&](std::vector<std::int64_t> shape, const at::TensorOptions& options) {
    shape.insert(shape.begin(), plan_.num_kv_heads);
    return at::zeros(shape, options);
  };
  const at::TensorOptions floats = numbers_.dtype(at::kFloat);
  const std::int64_t codes = coded_context(room);
  Rows rows{{zeros({room.rows - codes, plan_.head_dim}, numbers_),
             zeros({room.rows - codes, plan_.head_dim}, numbers_),
             {},
             {}},
            {}};
  if (codes > 0) {
    const std::int64_t bytes =
        code_row_bytes(code_element(kv_dtype_), static_cast<int>(plan_.head_dim));
    rows.key_codes = zeros({codes, bytes}, numbers_.dtype(at::kByte));
    rows.value_codes = zeros({codes, bytes}, numbers_.dtype(at::kByte));
  }
  if (policy_.has_scores()) {
    rows.tokens.positions = zeros({room.rows}, numbers_.dtype(at::kInt));
    rows.tokens.scores = zeros({room.rows}, floats);
  }
  if (room.residual_slots > 0) {
    rows.slots = {zeros({room.residual_slots, plan_.head_dim}, floats),
                  zeros({room.residual_slots, plan_.head_dim}, floats),
                  zeros({room.residual_slots}, floats)};
  }
  return rows;
}

BudgetCache GpuKept::cache_of(const Rows& rows, const KeptRoom& room) const {
  const RunningLayout layout = running_layout(policy_, room.budget);
  return {{static_cast<int>(layout.sinks), static_cast<int>(layout.context),
           static_cast<int>(layout.ring), static_cast<int>(policy_.residual_slots)},
          static_cast<int>(room.rows),
          address<void>(rows.tokens.key),
          address<void>(rows.tokens.value),
          address<float>(rows.tokens.scores),
          address<std::int32_t>(rows.tokens.positions),
          address<float>(rows.slots.key),
          address<float>(rows.slots.value),
          address<float>(rows.slots.counts),
          address<std::uint8_t>(rows.key_codes),
          address<std::uint8_t>(rows.value_codes)};
}

void GpuKept::add_budgets(int layer) {
  std::vector<Rows>& rows = rows_.emplace_back();
  const auto size = static_cast<std::int64_t>(sizeof(BudgetCache));
  at::Tensor caches =
      at::empty({static_cast<std::int64_t>(rooms_[index(layer)].size()), size}, at::kByte);
  auto* to = caches.mutable_data_ptr<std::uint8_t>();
  for (const KeptRoom& room : rooms_[index(layer)]) {
    rows.push_back(new_rows(room));
    const BudgetCache cache = cache_of(rows.back(), room);
    std::memcpy(to, &cache, sizeof(cache));
    to += size;
  }
  caches_.push_back(caches.to(numbers_.device()));
}

const KeptRoom& GpuKept::room(int layer, std::size_t sequence) const {
  return rooms_[index(layer)][sequence];
}

std::int64_t GpuKept::most_rows() const {
  std::int64_t most = 0;
  for (const std::vector<KeptRoom>& of_layer : rooms_) {
    for (const KeptRoom& room : of_layer) {
      most = std::max(most, room.rows);
    }
  }
  return most;
}

std::array<const at::Tensor*, 9> GpuKept::tensors_of(const Rows& rows) {
  return {&rows.tokens.key,    &rows.tokens.value, &rows.tokens.positions,
          &rows.tokens.scores, &rows.slots.key,    &rows.slots.value,
          &rows.slots.counts,  &rows.key_codes,    &rows.value_codes};
}

std::int64_t GpuKept::bytes(std::size_t sequence) const {
  std::int64_t bytes = 0;
  for (const std::vector<Rows>& of_layer : rows_) {
    for (const at::Tensor* tensor : tensors_of(of_layer[sequence])) {
      bytes += tensor->defined() ? static_cast<std::int64_t>(tensor->nbytes()) : 0;
    }
  }
  for (const Paged& paged : paged_) {
    bytes += paged.key.bytes(sequence) + paged.value.bytes(sequence) +
             (paged.codes ? paged.codes->bytes(sequence) : 0);
  }
  return bytes;
}

void GpuKept::copy(std::size_t from, std::size_t to) {
  for (const std::vector<Rows>& of_layer : rows_) {
    const auto sources = tensors_of(of_layer[from]), targets = tensors_of(of_layer[to]);
    for (std::size_t i = 0; i < sources.size(); ++i) {
      if (targets[i]->defined()) {
        targets[i]->copy_(*sources[i]);
      }
    }
  }
  for (Paged& paged : paged_) {
    paged.key.copy(from, to);
    paged.value.copy(from, to);
    if (paged.codes) {
      paged.codes->copy(from, to);
    }
    set_first_row(static_cast<int>(&paged - paged_.data()), to, paged.first_rows[from]);
  }
}

void GpuKept::write(int layer, std::size_t sequence, const HeadTokens& tokens) {
  const HeadTokens& own = rows_[index(layer)][sequence].tokens;
  own.key.narrow(1, 0, tokens.key.size(1)).copy_(tokens.key);
  own.value.narrow(1, 0, tokens.key.size(1)).copy_(tokens.value);
  if (own.scores.defined()) {
    const std::int64_t count = tokens.scores.size(1);
    own.scores.narrow(1, 0, count).copy_(tokens.scores);
    own.positions.narrow(1, 0, count)
        .copy_(tokens.positions.defined() ? tokens.positions
                                          : at::arange(count, own.positions.options()));
  }
}

HeadTokens GpuKept::read(int layer, std::size_t sequence, std::int64_t count) const {
  const HeadTokens& own = rows_[index(layer)][sequence].tokens;
  const auto first = [count](const at::Tensor& x) {
    return x.defined() ? x.narrow(1, 0, count) : x;
  };
  return {first(own.key), first(own.value), first(own.positions), first(own.scores)};
}

void GpuKept::write(int layer, std::size_t sequence, const LaidOutTokens& tokens,
                    StepExecutor& executor) {
  const Rows& rows = rows_[index(layer)][sequence];
  HeadTokens exact = tokens.rows;
  if (rows.key_codes.defined()) {
    const std::int64_t sinks = policy_.sink_tokens, codes = rows.key_codes.size(1);
    code_head_rows(tokens.rows.key.narrow(1, sinks, codes), kv_dtype_, rows.key_codes, executor);
    code_head_rows(tokens.rows.value.narrow(1, sinks, codes), kv_dtype_, rows.value_codes,
                   executor);
    for (at::Tensor* all : {&exact.key, &exact.value}) {
      *all = at::cat({all->narrow(1, 0, sinks), all->slice(1, sinks + codes)}, 1);
    }
  }
  write(layer, sequence, exact);
  const SlotTokens& own = rows.slots;
  if (own.key.defined()) {
    own.key.copy_(tokens.slots.key);
    own.value.copy_(tokens.slots.value);
    own.counts.copy_(tokens.slots.counts);
  }
}

const BudgetCache* GpuKept::caches(int layer) const {
  return static_cast<const BudgetCache*>(caches_[index(layer)].data_ptr());
}

std::int32_t* GpuKept::first_rows(int layer) const {
  return address<std::int32_t>(first_rows_[layer]);
}

}  // namespace kvc
