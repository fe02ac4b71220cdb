#include "runtime/attention/kept_latents.h"

#include "runtime/attention/cache_segments.h"
#include "runtime/compression/leaving_latents.h"

namespace kvc {

at::Tensor KeptLatents::keys(std::int64_t num_tokens) const {
  std::vector<at::Tensor> keys;
  for (const Segment& segment : cache_segments(decoder_, layer_.plan, layer_.group, layer_.index,
                                               layer_.factors, store_, num_tokens, 1)) {
    keys.push_back(segment.key.to(at::kFloat));
  }
  return at::cat(keys);
}

SlotKeys KeptLatents::slots(std::int64_t num_tokens) const {
  if (store_.slots().empty()) {
    return {};
  }
  const Segment segment = slot_segment(decoder_, layer_.layer(), layer_.factors,
                                       merged_layer(layer_.factors, layer_.index), store_.slots(),
                                       layer_.alpha, num_tokens);
  return {segment.key.to(at::kFloat), segment.score_bias};
}

void KeptLatents::remove(const std::vector<std::int64_t>& rows, bool is_step) {
  merge_into_slots({decoder_, layer_.plan, layer_.group, layer_.factors, store_}, rows,
                   !is_step && policy_.contiguous_merge);
  store_.keep(staying_rows(store_.num_rows(), rows));
}

}  // namespace kvc
