#include "runtime/gpu/gpu_forecast.h"

#include <algorithm>
#include <vector>

#include "core/error.h"
#include "runtime/gpu/gpu_coding.h"
#include "runtime/gpu/gpu_compression.h"
#include "runtime/gpu/gpu_kept.h"
#include "runtime/memory/memory_forecast.h"

namespace kvc {
namespace {

struct SequenceBytes {
  std::int64_t reading = 0, generating = 0;  // most of them
};

// Whole pages of what a group has decided, and one more of each form.
std::int64_t bound(const KvPlan& plan, int group, GroupTokens tokens, KvDtype dtype,
                   std::int64_t page_tokens) {
  if (decides(plan.groups[static_cast<std::size_t>(group)])) {
    for (std::int64_t* count : {&tokens.merged, &tokens.unmerged}) {
      *count += *count > 0 ? page_tokens : 0;
    }
  }
  return group_bytes(plan, group, tokens, dtype, page_tokens);
}

struct GroupBytes {
  std::int64_t reading = 0, generating = 0;
  std::int64_t twice = 0;  // of a layer whose tokens are decided: what it gets before others go
};

// What a sequence has before a prompt is read: nothing, or that of earlier turns.
struct Held {
  explicit Held(const KvPlan& plan) : groups(plan.groups.size()), reserved(plan.groups.size()) {}

  std::int64_t num_tokens = 0, codes = 0;
  std::int64_t capacity = 0;                  // of what is there
  std::vector<GroupTokens> groups, reserved;  // [num_groups]
};

// left: pending tokens once the prompt is decided. tokens: at the end.
GroupBytes bytes_of(const KvPlan& plan, int group, KvDtype dtype, std::int64_t page_tokens,
                    const Held& held, std::int64_t length, std::int64_t new_tokens,
                    std::int64_t left, GroupTokens tokens) {
  const auto index = static_cast<std::size_t>(group);
  const LatentGroup& spec = plan.groups[index];
  if (!decides(spec)) {  // all pages are there from the start
    const std::int64_t all = group_bytes(
        plan, group, {.unmerged = std::max(held.capacity, held.num_tokens + length + new_tokens)},
        dtype, page_tokens);
    return {all, all};
  }
  GroupTokens reading = held.groups[index];
  const std::int64_t pending = reading.pending + length;
  reading.pending = std::max(pending, held.reserved[index].pending);
  tokens.pending = pending_capacity(plan, tokens.bases, left, new_tokens);
  const std::int64_t most = bound(plan, group, tokens, dtype, page_tokens);
  const bool merges_all = spec.basis != LatentBasis::kWeights;
  const auto of_layer = [&](const GroupTokens& now) {
    return group_bytes(plan, group, now, dtype, page_tokens) / spec.num_layers;
  };
  return {std::max(bound(plan, group, reading, dtype, page_tokens), most), most,
          of_layer({.unmerged = merges_all ? 0 : pending - left}) +
              of_layer({.pending = tokens.pending}) +
              group_bytes(plan, group, {.bases = tokens.bases}, dtype, page_tokens)};
}

// Layers that become codes together: exact ones of a prompt, codes of earlier turns, and what the sequence has afterwards.
struct CodedPart {
  std::int64_t exact = 0, held = 0, coded = 0;
  std::int64_t ahead = 0;  // of `coded`: what is there before the prompt ends
};

// In the order in which they do.
std::vector<CodedPart> coded_parts(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens,
                                   const Held& held, std::int64_t length, std::int64_t capacity) {
  const auto rows = [&](std::int64_t tokens) {
    return plain_layer_bytes(plan, tokens, KvDtype::kFloat16, page_tokens);
  };
  const std::int64_t kept = exact_capacity(plan, held.capacity);
  const std::int64_t exact = rows(std::max(held.num_tokens - held.codes + length, kept));
  const bool is_first = held.num_tokens == 0;
  std::vector<CodedPart> parts;
  if (is_integer(dtype)) {
    const auto codes = [&](std::int64_t tokens) {
      return coded_layer_bytes(plan, tokens, dtype, page_tokens);
    };
    const CodedPart plain{exact, is_first ? 0 : codes(held.capacity) - rows(kept), codes(capacity)};
    parts.assign(static_cast<std::size_t>(plan.num_layers_from(KvSource::kPlain)), plain);
  }
  for (const CodedLayers& layers : coded_layers(plan)) {
    const auto codes = [&](std::int64_t tokens) {
      return coded_store_bytes(plan, layers, tokens, page_tokens);
    };
    CodedPart& part = parts.emplace_back();
    part.exact = layers.num_layers * exact;
    part.held = is_first ? 0 : codes(held.capacity) - layers.num_layers * rows(kept);
    part.coded = codes(capacity);
    if (codes_prompts_by_layer(plan, dtype)) {
      part.ahead =
          part.coded - layers.num_layers * rows(exact_capacity(plan, capacity)) - part.held;
    }
  }
  return parts;
}

// Until groups are decided everything is exact; then one part after the other becomes codes: its exact tokens go once
// there are codes and pages for what stays exact.
SequenceBytes bytes_of(const std::vector<CodedPart>& parts, const SequenceBytes& groups) {
  PassBytes pass(groups.reading);
  for (const CodedPart& part : parts) {
    pass.change(0, part.exact + part.held);
  }
  pass.change(0, groups.generating - groups.reading);
  for (const CodedPart& part : parts) {
    pass.change(0, part.ahead);
  }
  for (const CodedPart& part : parts) {
    const std::int64_t more = part.coded - part.held - part.ahead;
    pass.change(more, more - part.exact);
  }
  return {pass.most, pass.now};
}

// plain_dtype: of plain layers; groups store numbers.
SequenceBytes group_bytes_of(const KvPlan& plan, KvDtype plain_dtype, std::int64_t page_tokens,
                             const Held& held, std::int64_t length, std::int64_t new_tokens) {
  SequenceBytes bytes;
  if (plan.groups.empty()) {
    return bytes;
  }
  const KvDtype dtype = is_integer(plain_dtype) ? KvDtype::kFloat16 : plain_dtype;
  CacheForecast forecast(
      {.plan = plan, .dtype = dtype, .page_tokens = page_tokens, .plain_dtype = plain_dtype},
      held.num_tokens, held.groups);
  forecast.read(length);
  const std::vector<GroupTokens> read = forecast.tokens();
  forecast.extend(new_tokens);
  std::int64_t twice = 0;
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    const auto index = static_cast<std::size_t>(group);
    const GroupBytes own = bytes_of(plan, group, dtype, page_tokens, held, length, new_tokens,
                                    read[index].pending, forecast.tokens()[index]);
    bytes.reading += own.reading;
    bytes.generating += own.generating;
    twice = std::max(twice, own.twice);
  }
  bytes.reading += twice;
  return bytes;
}

SequenceBytes bytes_of(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens,
                       const Held& held, std::int64_t length, std::int64_t new_tokens) {
  const std::int64_t capacity = std::max(held.capacity, held.num_tokens + length + new_tokens);
  SequenceBytes bytes =
      bytes_of(coded_parts(plan, dtype, page_tokens, held, length, capacity),
               group_bytes_of(plan, dtype, page_tokens, held, length, new_tokens));
  // Plain layers without codes, whose pages are there from the start.
  const std::int64_t plain = is_integer(dtype)
                                 ? 0
                                 : plan.num_layers_from(KvSource::kPlain) *
                                       plain_layer_bytes(plan, capacity, dtype, page_tokens);
  return {plain + bytes.reading, plain + bytes.generating};
}

// Under a token policy: one layer of a prompt lies beside all that layers keep.
SequenceBytes kept_bytes(const KvPlan& plan, const TokenPolicy& policy, KvDtype dtype,
                         std::int64_t page_tokens, std::int64_t length, std::int64_t new_tokens) {
  std::int64_t kept = 0;
  for (int layer = 0; layer < plan.num_layers(); ++layer) {
    const std::int64_t budget = layer_budget(policy, length, layer, plan.num_layers());
    KVC_CHECK(
        !policy.is_running() || !is_integer(dtype) || length > budget,
        "--device cuda: --policy {} with --kv-dtype {} requires prompts longer than the budget of "
        "{} tokens; one has {}. Lower the budget, pass --kv-dtype float16, or use --device cpu",
        to_string(policy.kind), to_string(dtype), budget, length);
    kept += gpu_kept_bytes(plan, policy, layer, length, length + new_tokens, dtype, page_tokens);
  }
  return {kept + plain_layer_bytes(plan, length, KvDtype::kFloat16), kept};
}

}  // namespace

GpuCacheBytes gpu_cache_forecast(const KvPlan& plan, KvDtype dtype, std::int64_t page_tokens,
                                 const std::vector<std::int64_t>& lengths, std::int64_t new_tokens,
                                 const TokenPolicy& policy) {
  std::int64_t all = 0, more = 0;
  for (const std::int64_t length : lengths) {
    const SequenceBytes bytes =
        policy.is_full() ? bytes_of(plan, dtype, page_tokens, Held(plan), length, new_tokens)
                         : kept_bytes(plan, policy, dtype, page_tokens, length, new_tokens);
    all += bytes.generating;
    more = std::max(more, bytes.reading - bytes.generating);
  }
  return {all + more, all};
}

GpuCacheBytes gpu_turn_forecast(const GpuCache& cache, std::int64_t num_tokens, std::int64_t length,
                                std::int64_t new_tokens) {
  const KvPlan& plan = cache.plan();
  Held held(plan);
  held.num_tokens = num_tokens;
  held.codes = cache.num_codes(0);
  held.capacity = cache.capacity(0);
  for (std::size_t index = 0; index < plan.groups.size(); ++index) {
    const GpuGroup& group = cache.group(static_cast<int>(index));
    held.groups[index] = group.tokens(0);
    held.reserved[index] = group.reserved(0);
    if (!group.decides()) {
      held.groups[index].unmerged = num_tokens;
    }
  }
  const SequenceBytes bytes =
      bytes_of(plan, cache.kv_dtype(), cache.page_tokens(), held, length, new_tokens);
  return {std::max(bytes.reading, bytes.generating), bytes.generating};
}

}  // namespace kvc
