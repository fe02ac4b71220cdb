// What codes tokens of layers that are coded together on a GPU: their blocks' E, means and steps, as
// runtime/kernels/cuda/paged_tokens.h describes them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

#include "core/kv_plan.h"
#include "runtime/compression/coded_factors.h"
#include "runtime/kernels/cuda/paged_image.h"
#include "runtime/kernels/cuda/paged_tokens.h"
#include "runtime/store/coded_store.h"

namespace kvc {

// Tokens that are coded at a time: enough for all multiprocessors.
inline constexpr std::int64_t kCodingTokens = 4096;

class GpuCodedEncoder {
 public:
  // factors: of the plan's coded blocks. At most kMostPagedLayers layers.
  GpuCodedEncoder(const KvPlan& plan, const CodedLayers& layers,
                  const std::vector<CodedBlockFactors>& factors, at::Device device);

  // For EncodeTokens and StoreCodes; the caller sets angles.
  const PagedBlocks& blocks() const { return blocks_; }
  // A block's steps, [num_coefficients] float32 on the device.
  at::Tensor steps(std::size_t block) const;
  std::int64_t bytes() const { return image_.numel(); }

 private:
  DeviceBlock add_block(const CodedBlock& spec, const CodedBlockFactors& factors,
                        PagedImage& image);

  std::vector<DeviceBlock> described_;
  PagedBlocks blocks_{};
  at::Tensor image_;  // bytes on the device
};

}  // namespace kvc
