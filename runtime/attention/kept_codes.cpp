#include "runtime/attention/kept_codes.h"

#include "runtime/attention/coded_attention.h"
#include "runtime/attention/segment_attention.h"
#include "runtime/compression/leaving_codes.h"

namespace kvc {

at::Tensor KeptCodes::keys(std::int64_t num_tokens) const {
  std::vector<at::Tensor> keys;
  for (const Segment& segment :
       coded_segments(decoder_, {plan_, factors_, store_, index_}, at::kFloat, num_tokens)) {
    keys.push_back(segment.key);
  }
  return at::cat(keys);
}

void KeptCodes::remove(const std::vector<std::int64_t>& rows, bool is_step) {
  remove_coded_rows({decoder_, plan_, factors_, store_}, rows, is_step);
}

}  // namespace kvc
