#include "runtime/compression/key_forms.h"

namespace kvc {

bool stores_raw_keys(const ModelConfig& config, int layer) {
  return config.depends_on_length(layer);
}

at::Tensor key_of_codes(const Decoder& decoder, int layer, const at::Tensor& key,
                        const at::Tensor& positions) {
  return decoder.config().depends_on_length(layer) ? key
                                                   : decoder.rope().rotate(layer, key, positions);
}

at::Tensor key_for_codes(const Decoder& decoder, int layer, const at::Tensor& key,
                         const at::Tensor& positions) {
  return decoder.config().depends_on_length(layer) ? key
                                                   : decoder.rope().unrotate(layer, key, positions);
}

at::Tensor turn_key(const RopeTables& rope, int layer, const at::Tensor& key,
                    const at::Tensor& positions) {
  if (positions.numel() == 0) {
    return key;
  }
  const RopeRows rows = rope.rows_of_positions(layer, positions.max().item<std::int64_t>() + 1);
  if (!rows.cos.defined()) {
    return key;
  }
  const at::Tensor cos = rows.cos.index_select(0, positions).unsqueeze(1).to(key.device());
  const at::Tensor sin = rows.sin.index_select(0, positions).unsqueeze(1).to(key.device());
  const std::int64_t pairs = cos.size(-1);
  const at::Tensor first = key.narrow(2, 0, pairs), second = key.narrow(2, pairs, pairs);
  const at::Tensor rest = key.narrow(2, 2 * pairs, key.size(2) - 2 * pairs);
  return at::cat({first * cos - second * sin, first * sin + second * cos, rest}, 2);
}

}  // namespace kvc
