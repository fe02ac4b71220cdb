#include "model/flash_attention.h"

#include <algorithm>
#include <cmath>
#include <optional>
#include <tuple>

#include "model/fused_ops.h"

namespace kvc {

double attention_scale(const at::Tensor& query, const AttentionRule& rule) {
  return rule.scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

std::int64_t common_width(const at::Tensor& key, const at::Tensor& value) {
  return std::max(key.size(-1), value.size(-1));
}

at::Tensor padded_to(const at::Tensor& x, std::int64_t width) {
  return x.size(-1) == width ? x : at::constant_pad_nd(x, {0, width - x.size(-1)});
}

bool has_flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                         const AttentionRule& rule) {
  constexpr std::int64_t kMostWidth = 256, kMultiple = 8;
  const std::int64_t width = common_width(key, value);
  return query.is_cuda() && query.element_size() == 2 && rule.softcap == 0 && width <= kMostWidth &&
         width % kMultiple == 0 && !wants_gradient(query) && !wants_gradient(key) &&
         !wants_gradient(value);
}

FlashOutput flash_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                            const AttentionRule& rule, bool is_causal) {
  const std::int64_t width = common_width(key, value);
  std::optional<std::int64_t> before, after;
  if (is_causal) {
    after = 0;
    if (rule.window && key.size(1) > *rule.window) {
      before = *rule.window - 1;
    }
  }
  const auto result = at::_flash_attention_forward(
      padded_to(query, width), padded_to(key, width), padded_to(value, width), /*cum_seq_q=*/{},
      /*cum_seq_k=*/{}, query.size(1), key.size(1), /*dropout_p=*/0.0, is_causal,
      /*return_debug_mask=*/false, attention_scale(query, rule), before, after);
  return {std::get<0>(result).narrow(-1, 0, value.size(-1)), std::get<1>(result)};
}

}  // namespace kvc
