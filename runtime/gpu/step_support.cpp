#include "runtime/gpu/step_support.h"

#include "core/arithmetic.h"
#include "core/error.h"
#include "runtime/gpu/gpu_policy.h"
#include "runtime/gpu/gpu_reuse.h"
#include "runtime/gpu/key_places.h"
#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "runtime/kernels/cuda/few_rows_product.h"
#include "runtime/kernels/cuda/paged_tokens.h"
#include "runtime/store/coded_store.h"

namespace kvc {
namespace {

constexpr const char* kWayOut = "use --device cpu";

// Columns of weights, which kernels read eight at a time.
void check_widths(const ModelConfig& config) {
  for (const std::int64_t width :
       {config.hidden_size, config.intermediate_size, config.attended_dim()}) {
    KVC_CHECK(width % 8 == 0, "--device cuda: a weight of {} columns, expected a multiple of 8; {}",
              width, kWayOut);
  }
}

void check_heads(const ModelConfig& config) {
  DenseAttention attention;
  attention.num_heads = static_cast<int>(config.num_heads);
  attention.num_kv_heads = static_cast<int>(config.num_kv_heads);
  attention.head_dim = static_cast<int>(config.head_dim);
  const int width = attention.num_kv_heads * attention.head_dim;
  attention.rows[0].key.width = attention.rows[0].value.width = width;
  attention.rows[0].key.block_rows = attention.rows[0].value.block_rows = kScaledRows;
  const LaunchError error = check_dense_attention(attention, 1);
  KVC_CHECK(error.empty(), "--device cuda: {}; {}", error, kWayOut);
}

void check_fused(const FusedLayer& layer) {
  const std::size_t sources = layer.key_sources.size();
  KVC_CHECK(layer.form == FusionForm::kChannel && layer.key_heads.empty() &&
                layer.value_heads.empty() && layer.value_sources.size() == sources &&
                (sources == 1 || sources == 2),
            "--device cuda: fused layer {} has form {} with {} sources; the GPU runtime supports "
            "form channel with one or two whole layers; {}",
            layer.layer, to_string(layer.form), sources, kWayOut);
}

// What latents have kernels for.
void check_latents(const ModelConfig& config, const KvPlan& plan, int index) {
  const LatentGroup& group = plan.groups[static_cast<std::size_t>(index)];
  for (int layer = group.first_layer; layer < group.first_layer + group.num_layers; ++layer) {
    KVC_CHECK(!config.layer(layer).window || !plan.request ||
                  plan.request->later != LaterTokens::kNewSegment,
              "--device cuda: layer {} has a sliding window, where the GPU runtime supports one "
              "basis per request: convert with --later project or exact, or {}",
              layer, kWayOut);
  }
  RankAttention attention;
  attention.num_heads = static_cast<int>(config.num_heads);
  attention.num_kv_heads = static_cast<int>(config.num_kv_heads);
  attention.key_rank = static_cast<int>(group.key_width());
  attention.value_rank = static_cast<int>(group.value_width());
  attention.value_column = static_cast<int>(group.rank) - attention.value_rank;
  attention.latents.width = static_cast<int>(group.rank);
  attention.latents.block_rows = kScaledRows;
  attention.keys.pairs.num_pairs = static_cast<int>(rank_pairs(config.head_dim));
  attention.keys.rank_stride = attention.sums_width =
      static_cast<int>(round_up(group.rank, kScaledChannels));
  const LaunchError error = check_rank_attention(attention);
  KVC_CHECK(error.empty(), "--device cuda: layers {} to {}: {}; or {}", group.first_layer,
            group.first_layer + group.num_layers - 1, error, kWayOut);
}

// Codes of keys that meet the query, or of keys that are rebuilt.
LaunchError coded_error(const ModelConfig& config, const CodedBlock& block) {
  if (block.rotated || 2 * block.bases == config.head_dim) {
    CodedAttention attention;
    attention.num_heads = static_cast<int>(config.num_heads);
    attention.num_kv_heads = static_cast<int>(config.num_kv_heads);
    attention.head_dim = static_cast<int>(config.head_dim);
    return check_coded_attention(attention);
  }
  RankAttention attention;
  const DeviceTiles tiles;  // any: what they hold is not asked
  attention.element = DeviceElement::kFloat16;
  attention.num_heads = static_cast<int>(config.num_heads);
  attention.num_kv_heads = static_cast<int>(config.num_kv_heads);
  attention.key_codes = attention.value_codes = {
      &tiles, block.head < 0 ? 1 : static_cast<int>(config.num_kv_heads), 0};
  attention.keys.pairs.num_pairs = static_cast<int>(rank_pairs(config.head_dim));
  return check_rank_attention(attention);
}

// What codes have kernels for.
void check_coded(const ModelConfig& config, const KvPlan& plan, const CodedLayers& layers) {
  const int last = layers.first_layer + layers.num_layers - 1;
  KVC_CHECK(layers.num_layers <= kMostPagedLayers,
            "--device cuda: layers {} to {} are coded together, {} of them; at most {} can be: "
            "convert with a smaller --group, or {}",
            layers.first_layer, last, layers.num_layers, kMostPagedLayers, kWayOut);
  const LaunchError error =
      coded_error(config, plan.coded[static_cast<std::size_t>(layers.first_block)]);
  KVC_CHECK(error.empty(), "--device cuda: layers {} to {}: {}; or {}", layers.first_layer, last,
            error, kWayOut);
}

// Codes hold keys before RoPE; a fused layer turns those that it reads by its own angles.
void check_fused_codes(const ModelConfig& config, const FusedLayer& layer) {
  for (const int source : layer.key_sources) {
    KVC_CHECK(config.layer(source).rope == config.layer(layer.layer).rope,
              "--device cuda: fused layer {} and layer {}, whose keys it reads, have different "
              "RoPE, which integer caches do not support; leave out --kv-dtype, or {}",
              layer.layer, source, kWayOut);
  }
}

// What computes, or integers of plain layers.
void check_kv_dtype(const CacheTypes& types, const ModelConfig& config, const KvPlan& plan) {
  const KvDtype own = types.compute == at::kBFloat16 ? KvDtype::kBFloat16 : KvDtype::kFloat16;
  if (types.kv == own) {
    return;
  }
  const std::string wanted = to_string(types.kv);
  KVC_CHECK(types.kv == KvDtype::kInt8 || types.kv == KvDtype::kInt4,
            "--device cuda stores the cache as {} (the compute dtype), int8 or int4, not as {}; "
            "pass --kv-dtype {} or {}",
            to_string(own), wanted, to_string(own), kWayOut);
  KVC_CHECK(plan.groups.empty() || plan.num_layers_from(KvSource::kPlain) > 0,
            "--device cuda: --kv-dtype {} applies to plain layers, and this model has none; pass "
            "--kv-dtype {}, or {}",
            wanted, to_string(own), kWayOut);
  for (const FusedLayer& layer : plan.fused) {
    check_fused_codes(config, layer);
  }
}

}  // namespace

void check_gpu_model(const ModelConfig& config, const KvPlan& plan) {
  KVC_CHECK(!config.mla, "--device cuda: multi-head latent attention is not supported yet; {}",
            kWayOut);
  KVC_CHECK(!config.moe, "--device cuda: mixtures of experts are not supported yet; {}", kWayOut);
  check_widths(config);
  check_heads(config);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    KVC_CHECK(!config.depends_on_length(layer),
              "--device cuda: layer {} has a RoPE that depends on the length of the text, which is "
              "not supported; {}",
              layer, kWayOut);
    const KvSource source = plan.layers[static_cast<std::size_t>(layer)];
    KVC_CHECK(source != KvSource::kPaired,
              "--device cuda: layer {} is {}; the GPU runtime supports plain, fused, latent and "
              "coded layers; {}",
              layer, to_string(source), kWayOut);
  }
  for (const FusedLayer& layer : plan.fused) {
    check_fused(layer);
  }
  for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
    check_latents(config, plan, group);
  }
  KVC_CHECK(!codes_prompts(plan) ||
                plan.num_layers_from(KvSource::kPlain) + plan.num_layers_from(KvSource::kCoded) ==
                    plan.num_layers(),
            "--device cuda: the conversion reads prompts through codes (--prefill coded) and has "
            "layers that are neither coded nor plain; convert without --prefill, or {}",
            kWayOut);
  for (const CodedLayers& layers : coded_layers(plan)) {
    check_coded(config, plan, layers);
  }
}

void check_gpu_options(const EngineOptions& options, const CacheTypes& types,
                       const ModelConfig& config, const KvPlan& plan) {
  KVC_CHECK(types.compute == at::kBFloat16 || types.compute == at::kHalf,
            "--device cuda computes in bfloat16 or float16, not in {}; pass --dtype bfloat16",
            c10::toString(types.compute));
  check_kv_dtype(types, config, plan);
  check_gpu_policy(options.policy, types, config, plan);
  KVC_CHECK(!options.selective, "--device cuda: --selective is not supported; {}", kWayOut);
  check_gpu_reuse(options.reuse, options.policy, types.kv, config, plan);
}

void check_gpu_turns(const TokenPolicy& policy) {
  KVC_CHECK(policy.is_full(),
            "--device cuda: --chat cannot be combined with --policy {}; leave one out, or {}",
            to_string(policy.kind), kWayOut);
}

}  // namespace kvc
