// Sizes of multi-head latent attention (DeepSeek-V2): keys and values come from one latent per
// token; all heads share one rotary key.
#pragma once

#include <cstdint>

namespace kvc {

class ConfigReader;

struct MlaConfig {
  std::int64_t q_lora_rank = 0;  // 0: queries are projected from the hidden states directly
  std::int64_t kv_lora_rank = 0;
  std::int64_t qk_nope_head_dim = 0;  // channels of queries and keys that are not rotated
  std::int64_t qk_rope_head_dim = 0;  // channels that are
  std::int64_t v_head_dim = 0;

  std::int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  // Contents of the model's own cache per token and layer: the normed latent and the rotated key.
  std::int64_t cache_width() const { return kv_lora_rank + qk_rope_head_dim; }

  friend bool operator==(const MlaConfig&, const MlaConfig&) = default;
};

// Throws Error naming the key if a value is impossible or not supported.
MlaConfig resolve_mla(const ConfigReader& config, std::int64_t num_heads);

}  // namespace kvc
