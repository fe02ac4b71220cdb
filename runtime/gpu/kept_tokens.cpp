#include "runtime/gpu/kept_tokens.h"

#include <algorithm>
#include <memory>

#include "runtime/policies/token_policies.h"
#include "runtime/store/residual_slots.h"

namespace kvc {
namespace {

// x [num_kv_heads, n] or [num_kv_heads, n, width]
at::Tensor gather(const at::Tensor& x, const at::Tensor& tokens) {
  return x.dim() == 2 ? x.gather(1, tokens)
                      : x.gather(1, tokens.unsqueeze(2).expand({-1, -1, x.size(2)}));
}

// Runs of tokens, each of which becomes a slot.
SlotTokens means_of_runs(const at::Tensor& key, const at::Tensor& value, std::int64_t num_slots) {
  const std::int64_t count = key.size(1), each = (count + num_slots - 1) / num_slots;
  SlotTokens slots{at::zeros({key.size(0), num_slots, key.size(2)}, key.options()),
                   at::zeros({key.size(0), num_slots, value.size(2)}, value.options()),
                   at::zeros({key.size(0), num_slots}, key.options())};
  for (std::int64_t first = 0; first < count; first += each) {
    const std::int64_t slot = first / each, members = std::min(each, count - first);
    slots.key.select(1, slot).copy_(key.narrow(1, first, members).mean(1));
    slots.value.select(1, slot).copy_(value.narrow(1, first, members).mean(1));
    slots.counts.select(1, slot).fill_(members);
  }
  return slots;
}

// One token after the other into the slot that is most like it, which it changes: on the CPU.
SlotTokens most_alike(const at::Tensor& key, const at::Tensor& value, std::int64_t num_slots) {
  const std::int64_t heads = key.size(0), count = key.size(1), width = key.size(2);
  const at::Tensor keys = key.cpu().contiguous(), values = value.cpu().contiguous();
  ResidualSlots slots(std::make_shared<KvPool>(1), num_slots, heads, width, width);
  for (std::int64_t head = 0; head < heads; ++head) {
    for (std::int64_t i = 0; i < count; ++i) {
      const std::int64_t row = (head * count + i) * width;
      slots.merge(head, keys.const_data_ptr<float>() + row, values.const_data_ptr<float>() + row);
    }
  }
  const auto tensor = [&](const float* numbers, std::int64_t last) {
    return at::from_blob(const_cast<float*>(numbers), {num_slots, heads, last}, at::kFloat)
        .transpose(0, 1)
        .contiguous()
        .to(key.device());
  };
  return {tensor(slots.key(), width), tensor(slots.value(), width),
          tensor(slots.count(), 1).squeeze(2)};
}

SlotTokens merge(const TokenPolicy& policy, const HeadTokens& all, const at::Tensor& merged) {
  if (policy.residual_slots == 0) {
    return {};
  }
  const at::Tensor keys = gather(all.key, merged).to(at::kFloat),
                   values = gather(all.value, merged).to(at::kFloat);
  return policy.contiguous_merge || policy.residual_slots == 1
             ? means_of_runs(keys, values, policy.residual_slots)
             : most_alike(keys, values, policy.residual_slots);
}

}  // namespace

LaidOutTokens lay_out(const TokenPolicy& policy, const RunningLayout& layout,
                      const HeadTokens& all) {
  const at::Tensor positions =
      at::arange(all.key.size(1), all.key.options().dtype(at::kLong)).expand({all.key.size(0), -1});
  const RunningChoice chosen = choose_running(layout, positions, all.scores);
  LaidOutTokens result;
  result.rows = {
      gather(all.key, chosen.kept), gather(all.value, chosen.kept), chosen.kept.to(at::kInt), {}};
  if (all.scores.defined()) {
    result.rows.scores = gather(all.scores, chosen.kept);
  }
  result.slots = merge(policy, all, chosen.leaving);
  return result;
}

}  // namespace kvc
