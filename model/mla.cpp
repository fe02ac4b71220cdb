#include "model/mla.h"

namespace kvc {

MlaProjections project_mla(const MlaConfig& config, const MlaWeights& weights,
                           const at::Tensor& hidden) {
  at::Tensor source = hidden;
  if (weights.q_a_proj.weight.defined()) {
    source = weights.q_a_norm(weights.q_a_proj(hidden));
  }
  const at::Tensor compressed = weights.kv_a_proj(hidden);
  const at::Tensor latent = compressed.narrow(-1, 0, config.kv_lora_rank).contiguous();
  return {.query = weights.q_proj(source).unflatten(-1, {-1, config.qk_head_dim()}),
          .latent = weights.kv_a_norm(latent),
          .rotary_key =
              compressed.narrow(-1, config.kv_lora_rank, config.qk_rope_head_dim).unsqueeze(1)};
}

MlaKeyValue expand_latents(const MlaConfig& config, const MlaWeights& weights,
                           const at::Tensor& latent, const at::Tensor& rotary_key) {
  const at::Tensor heads =
      weights.kv_b_proj(latent).unflatten(-1, {-1, config.qk_nope_head_dim + config.v_head_dim});
  const at::Tensor shared = rotary_key.expand({-1, heads.size(1), -1});
  return {.key = at::cat({heads.narrow(-1, 0, config.qk_nope_head_dim), shared}, -1),
          .value = heads.narrow(-1, config.qk_nope_head_dim, config.v_head_dim)};
}

}  // namespace kvc
