#include "model/config_parts.h"

#include "core/error.h"

namespace kvc {

MlaConfig resolve_mla(const ConfigReader& reader, std::int64_t num_heads) {
  constexpr std::int64_t kMaxLatentRank = std::int64_t{1} << 20;
  constexpr std::int64_t kMaxHeadDim = std::int64_t{1} << 12;
  MlaConfig mla;
  const bool direct_queries =
      reader.contains("q_lora_rank") && reader.find("q_lora_rank") == nullptr;
  mla.q_lora_rank = direct_queries ? 0 : reader.integer_or("q_lora_rank", 1536, 1, kMaxLatentRank);
  mla.kv_lora_rank = reader.integer_or("kv_lora_rank", 512, 1, kMaxLatentRank);
  mla.qk_nope_head_dim = reader.integer_or("qk_nope_head_dim", 128, 1, kMaxHeadDim);
  mla.qk_rope_head_dim = reader.integer_or("qk_rope_head_dim", 64, 2, kMaxHeadDim);
  mla.v_head_dim = reader.integer_or("v_head_dim", 128, 1, kMaxHeadDim);
  KVC_CHECK(mla.qk_rope_head_dim % 2 == 0,
            "{}: \"qk_rope_head_dim\" is {}; channels are rotated in pairs, so it must be even",
            reader.subject(), mla.qk_rope_head_dim);
  const std::int64_t kv_heads = reader.integer_or("num_key_value_heads", num_heads, 1, kMaxHeadDim);
  KVC_CHECK(kv_heads == num_heads,
            "{}: \"num_key_value_heads\" is {}, \"num_attention_heads\" {}; with latent attention "
            "they must be equal",
            reader.subject(), kv_heads, num_heads);
  return mla;
}

}  // namespace kvc
