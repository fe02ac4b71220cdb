#include "model/cache_plan.h"

#include "core/error.h"

namespace kvc {

KvPlan plain_plan(const ModelConfig& config) {
  KvPlan plan = plain_plan(config.num_layers, config.num_kv_heads, config.head_dim);
  if (config.mla) {
    plan.own_widths = KvWidths{config.mla->kv_lora_rank, config.mla->qk_rope_head_dim};
    plan.check();
  }
  return plan;
}

KvDtype cache_dtype(const ModelConfig& config) {
  if (config.dtype == "float32" || config.dtype == "float64") {
    return KvDtype::kFloat32;
  }
  return config.dtype == "float16" ? KvDtype::kFloat16 : KvDtype::kBFloat16;
}

std::string why_not_factorised(const ModelConfig& config) {
  if (!config.mla) {
    return "";
  }
  const std::int64_t expanded =
      config.num_heads * (config.mla->qk_head_dim() + config.mla->v_head_dim);
  return fmt::format(
      "{} models already cache one latent per token and layer ({} values, and {} of a rotary key, "
      "instead of {} of keys and values), so there are no key and value projections to factorise; "
      "convert with --method xkv or xkv-static, or run the model as it is with kvrun",
      config.arch->model_type, config.mla->kv_lora_rank, config.mla->qk_rope_head_dim, expanded);
}

void require_key_value_projections(const ModelConfig& config, const std::string& subject) {
  const std::string reason = why_not_factorised(config);
  KVC_CHECK(reason.empty(), "{}: {}", subject, reason);
}

}  // namespace kvc
