#include "runtime/gpu/gpu_reuse.h"

#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "model/decoder.h"

namespace kvc {
namespace {

ReuseModel reuse_model(const GpuModel& model) {
  return {.config = model.config,
          .rope = model.rope,
          .weights = model.weights,
          .dtype = model.dtype,
          .layer = [&model](int layer) -> const LayerWeights& {
            return model.layers[static_cast<std::size_t>(layer)];
          }};
}

}  // namespace

void check_gpu_reuse(const ReuseOptions& options, const TokenPolicy& policy, KvDtype kv_dtype,
                     const ModelConfig& config, const KvPlan& plan) {
  if (options.donors.empty()) {
    return;
  }
  check_reuse(options, policy, kv_dtype, config, plan);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    KVC_CHECK(!config.layer(layer).window || options.retention == Retention::kAll,
              "--device cuda: layer {} has a sliding window, where layers may not drop tokens; add "
              "--reuse retention=all, or use --device cpu",
              layer);
  }
}

std::unique_ptr<PromptReuse> gpu_reuse(const Checkpoint& checkpoint, const GpuModel& model,
                                       const EngineOptions& options) {
  if (options.reuse.donors.empty()) {
    return nullptr;
  }
  return std::make_unique<PromptReuse>(
      reuse_model(model),
      donor_format(checkpoint, model.config, model.dtype, model.dtype, options.weight_dtype),
      options.reuse);
}

std::optional<at::Tensor> read_reused_prompt(const GpuModel& model, PromptReuse& reuse,
                                             GpuCache& cache, std::size_t sequence,
                                             const std::vector<std::int64_t>& ids,
                                             const Stopped& stopped, ReuseReport& report) {
  const c10::InferenceMode guard;
  PromptReuse::Found found = reuse.find(ids);
  std::optional<at::Tensor> logits;
  if (found.donor) {
    const auto num_tokens = static_cast<std::int64_t>(ids.size());
    if (!cache.drops_tokens()) {
      cache.begin_prompt(sequence, num_tokens);
    }
    const auto store = [&](int layer, const at::Tensor& key, const at::Tensor& value,
                           const at::Tensor&) {
      cache.drops_tokens() ? cache.write_last(layer, sequence, num_tokens, key, value)
                           : cache.write(layer, sequence, 0, key, value);
    };
    const at::Tensor hidden_state = reuse.read(ids, found, store, stopped, nullptr);
    logits = compute_logits(model.config, model.weights, hidden_state);
  }
  report = std::move(found.report);
  return logits;
}

void keep_gpu_prompt(PromptReuse& reuse, const GpuCache& cache, std::size_t sequence,
                     const std::vector<std::int64_t>& ids) {
  const auto count = static_cast<std::int64_t>(ids.size());
  reuse.keep(ids, [&](int layer) -> PromptReuse::Rows {
    const auto copied = [](const at::Tensor& rows) {  // the cache goes on
      return rows.to(at::kCPU, rows.scalar_type(), /*non_blocking=*/false, /*copy=*/true);
    };
    return {copied(cache.keys(layer, sequence, 0, count)),
            copied(cache.values(layer, sequence, 0, count))};
  });
}

std::int64_t reuse_work_bytes(const ModelConfig& config, std::int64_t num_tokens) {
  constexpr std::int64_t kBlocks = 3 * (std::int64_t{8} << 20);  // scores of a block of queries
  // A layer's rows in its type, another's, and in float32; residual streams and activations of all tokens at once.
  const std::int64_t rows = 2 * config.kv_dim() * (2 + 2 + 4),
                     activations = 2 * (4 * config.hidden_size + 4 * config.q_dim() +
                                        4 * config.kv_dim() + 3 * config.intermediate_size);
  const std::int64_t matching = 4 * 4 * 2 * config.hidden_size;  // embeddings of both, turned
  return kBlocks + num_tokens * std::max(rows + activations, matching);
}

}  // namespace kvc
