#include "model/joint_moment.h"

#include <algorithm>

#include "model/tensor_memory.h"

namespace kvc {
namespace {

constexpr std::int64_t kSliceTokens = 1024;  // widened to float64 at a time

}  // namespace

JointMoment::JointMoment(const LayerRun& run, std::int64_t num_tokens, const KvWidths& widths,
                         const std::filesystem::path& spill_directory)
    : run_(run), widths_(widths) {
  const std::vector<std::int64_t> shape = {num_tokens, run.num_layers * widths.total()};
  rows_ = make_scratch_tensor(shape, at::kFloat, spill_directory);
}

void JointMoment::set(int layer, std::int64_t first, const at::Tensor& key,
                      const at::Tensor& value) {
  const at::Tensor rows = rows_.narrow(0, first, key.size(0));
  const std::int64_t column = (layer - run_.first_layer) * widths_.total();
  rows.narrow(1, column, widths_.key).copy_(key);
  rows.narrow(1, column + widths_.key, widths_.value).copy_(value);
}

JointSums JointMoment::sums(at::Device device) const {
  const std::int64_t width = rows_.size(1);
  const at::TensorOptions wide = at::TensorOptions(device).dtype(at::kDouble);
  JointSums sums{at::zeros({width}, wide), at::zeros({width, width}, wide)};
  for (std::int64_t begin = 0; begin < rows_.size(0); begin += kSliceTokens) {
    const at::Tensor y =
        rows_.narrow(0, begin, std::min(kSliceTokens, rows_.size(0) - begin)).to(wide);
    sums.sum.add_(y.sum(0));
    sums.second_moment.addmm_(y.t(), y);
  }
  return {sums.sum.cpu(), sums.second_moment.cpu()};
}

}  // namespace kvc
