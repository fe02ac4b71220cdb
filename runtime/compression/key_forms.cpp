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

}  // namespace kvc
