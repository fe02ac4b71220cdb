#include "runtime/compression/group_view.h"

#include <cstddef>

namespace kvc {

std::vector<MergedLatents> merged_latents(const GroupFactors& factors, const LatentStore& store,
                                          int index, at::ScalarType dtype) {
  const auto at_index = static_cast<std::size_t>(index);
  const std::int64_t rows = store.merged().num_rows();
  const std::vector<RequestBasis>& bases = store.bases();
  std::vector<MergedLatents> parts;
  if (rows > 0 && bases.empty()) {
    parts.push_back({0, rows, factors.merged_layers[at_index]});
  }
  for (std::size_t i = 0; i < bases.size(); ++i) {
    const std::int64_t last = i + 1 < bases.size() ? bases[i + 1].first_row : rows;
    Reconstruction layer{bases[i].key[at_index].rows(dtype), bases[i].value[at_index].rows(dtype)};
    layer.is_principal = true;
    parts.push_back({bases[i].first_row, last, layer});
  }
  return parts;
}

}  // namespace kvc
