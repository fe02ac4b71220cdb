#include "runtime/policies/policy_check.h"

#include "core/error.h"

namespace kvc {

namespace {

// Are keys turned by angles that depend on nothing but the distance?
bool turns_by_position(const ModelConfig& config, int layer) {
  const int rope = config.layer(layer).rope;
  return rope >= 0 && !config.depends_on_length(layer) &&
         config.ropes[static_cast<std::size_t>(rope)].attention_factor == 1;
}

}  // namespace

void check_token_policy(const TokenPolicy& policy, const KvPlan& plan, const ModelConfig& config,
                        KvDtype dtype) {
  if (policy.is_full()) {
    return;
  }
  const std::string name = to_string(policy.kind);
  KVC_CHECK(!config.mla,
            "--policy {}: the model caches latents of all heads together (MLA), of which heads "
            "cannot keep different tokens; leave --policy out",
            name);
  KVC_CHECK(
      plan.num_layers_from(KvSource::kPlain) == plan.num_layers(),
      "--policy {}: {} of {} layers are converted, expected plain ones; leave --policy out, or "
      "use the original checkpoint",
      name, plan.num_layers() - plan.num_layers_from(KvSource::kPlain), plan.num_layers());
  for (int layer = 0; layer < config.num_layers; ++layer) {
    KVC_CHECK(config.layer(layer).window.value_or(config.max_position_embeddings) >=
                  config.max_position_embeddings,
              "--policy {}: layer {} sees the last {} tokens only, which a policy must not replace "
              "by others; leave --policy out",
              name, layer, *config.layer(layer).window);
    KVC_CHECK(
        !policy.cache_positions || turns_by_position(config, layer),
        "--policy {}: pos=cache turns keys on, which layer {} does not allow: it has no RoPE, "
        "one that scales keys or one that depends on the length of the text; use pos=true",
        name, layer);
  }
  KVC_CHECK(
      !policy.prunes_channels() || !is_integer(dtype),
      "--policy {}: keys lose channels as numbers, not as codes of {}; use --kv-dtype float16",
      name, to_string(dtype));
  KVC_CHECK(policy.kind != TokenPolicyKind::kStreamingLlm || !is_integer(dtype),
            "--policy {}: the first and the last tokens, all that it keeps, never become codes of "
            "{}; use --kv-dtype float16",
            name, to_string(dtype));
}

}  // namespace kvc
