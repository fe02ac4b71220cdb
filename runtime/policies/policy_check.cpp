#include "runtime/policies/policy_check.h"

#include <optional>

#include "core/error.h"

namespace kvc {

namespace {

// True if the angles that turn keys depend on nothing but the distance.
bool turns_by_position(const ModelConfig& config, int layer) {
  return config.layer(layer).rope >= 0 && !config.depends_on_length(layer) &&
         config.attention_factor(layer) == 1;
}

bool sees_a_window(const ModelConfig& config, int layer) {
  return config.layer(layer).window.value_or(config.max_position_embeddings) <
         config.max_position_embeddings;
}

// What latents of a group can be and not be merged into.
bool merges_every_latent(const KvPlan& plan) {
  return plan.groups.front().replaces_projections() || has_basis(plan, LatentBasis::kCalibrated) ||
         (has_basis(plan, LatentBasis::kWeights) && plan.compression.rule == MergeRule::kLs &&
          plan.compression.unmerged == UnmergedForm::kPlain && !plan.key_norm);
}

// Averages of merged tokens.
void check_slots(const TokenPolicy& policy, const std::string& name, const KvPlan& plan) {
  if (policy.residual_slots == 0) {
    return;
  }
  for (const FusedLayer& layer : plan.fused) {
    KVC_CHECK(layer.form != FusionForm::kFull,
              "--policy {}: residual={} merges rotated keys, but fused layer {} multiplies keys "
              "before RoPE with matrices; use residual=0, which drops tokens instead",
              name, policy.residual_slots, layer.layer);
  }
  KVC_CHECK(plan.coded.empty(),
            "--policy {}: residual={}, but coded layers have no form for averages of tokens; use "
            "residual=0, which drops them",
            name, policy.residual_slots);
  KVC_CHECK(
      plan.groups.empty() || merges_every_latent(plan),
      "--policy {}: residual={} merges tokens, but not every token of these groups has a latent of "
      "one shared basis; use residual=0, or convert with --merge ls --unmerged plain (not of "
      "models with a norm of keys), pca or xkv-static",
      name, policy.residual_slots);
}

void check_sources(const TokenPolicy& policy, const std::string& name, const KvPlan& plan) {
  const int converted = plan.num_layers() - plan.num_layers_from(KvSource::kPlain);
  KVC_CHECK(
      !plan.paired,
      "--policy {}: paired layers ({}) share directions of all tokens; leave --policy out, or "
      "run the original checkpoint",
      name, plan.method);
  KVC_CHECK(!policy.prunes_channels() || converted == 0,
            "--policy {}: {} of {} layers are converted, but only plain layers store keys; use "
            "snapkv, or the original checkpoint",
            name, converted, plan.num_layers());
  KVC_CHECK(!policy.compress_chunks || converted == 0,
            "--policy {}: compress-at=chunk is impossible on converted layers, which read a prompt "
            "one after the other and keep the same tokens; use compress-at=end",
            name);
  KVC_CHECK(!policy.cache_positions || converted == plan.num_layers_from(KvSource::kFused),
            "--policy {}: pos=cache is impossible on converted layers, whose keys are rebuilt at "
            "their own positions; use pos=true",
            name);
  KVC_CHECK(
      !codes_prompts(plan),
      "--policy {}: the conversion reads prompts through codes (--prefill coded), but policies "
      "choose among exact tokens; convert without --prefill, or leave --policy out",
      name);
  check_slots(policy, name, plan);
}

}  // namespace

void check_token_policy(const TokenPolicy& policy, const KvPlan& plan, const ModelConfig& config,
                        KvDtype dtype) {
  if (policy.is_full()) {
    return;
  }
  const std::string name = to_string(policy.kind);
  KVC_CHECK(!config.mla,
            "--policy {}: not supported with MLA, which caches latents of all heads together; "
            "leave --policy out",
            name);
  check_sources(policy, name, plan);
  for (int layer = 0; layer < config.num_layers; ++layer) {
    KVC_CHECK(!sees_a_window(config, layer),
              "--policy {}: not supported with sliding windows; layer {} reads the last {} tokens "
              "only. Leave --policy out",
              name, layer, *config.layer(layer).window);
    KVC_CHECK(!policy.cache_positions || turns_by_position(config, layer),
              "--policy {}: pos=cache rotates keys again, which layer {} does not allow: its RoPE "
              "is absent, scales keys or depends on the length of the text; use pos=true",
              name, layer);
  }
  KVC_CHECK(!policy.prunes_channels() || !is_integer(dtype),
            "--policy {}: cannot remove channels of keys stored as {}; use --kv-dtype float16",
            name, to_string(dtype));
}

KvPlan with_selective(KvPlan plan, const std::optional<SelectiveReconstruction>& selective,
                      const TokenPolicy& policy, const ModelConfig& config) {
  plan.selective = selective;
  if (!selective) {
    return plan;
  }
  KVC_CHECK(!plan.own_widths,
            "--selective: not supported with MLA, where attention rebuilds no keys; leave "
            "--selective out");
  KVC_CHECK(!plan.groups.empty() && !has_basis(plan, LatentBasis::kWeights),
            "--selective: method {} does not rebuild keys from principal directions; convert with "
            "--method xkv, xkv-static or pca, or leave --selective out",
            plan.method);
  KVC_CHECK(policy.is_full(),
            "--selective keeps all tokens, --policy {} does not; leave one of them out",
            to_string(policy.kind));
  for (const LatentGroup& group : plan.groups) {
    for (int layer = group.first_layer; layer < group.first_layer + group.num_layers; ++layer) {
      KVC_CHECK(!config.depends_on_length(layer),
                "--selective: the RoPE of layer {} depends on the length of the text, so landmarks "
                "would become wrong; leave --selective out",
                layer);
      KVC_CHECK(!sees_a_window(config, layer),
                "--selective: layer {} has a sliding window of {} tokens; leave --selective out",
                layer, *config.layer(layer).window);
    }
  }
  return plan;
}

}  // namespace kvc
