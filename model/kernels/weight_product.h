// x Wᵀ for few rows x, on the CPU: limited by how fast W is read, which happens once. Needs no torch.
#pragma once

#include <cstdint>

namespace kvc {

enum class WeightElement { kFloat32, kBFloat16, kFloat16 };

inline constexpr std::int64_t kMaxProductRows = 8;
inline constexpr std::int64_t kProductPadding = 32;  // channels
inline std::int64_t padded_channels(std::int64_t in) {
  return (in + kProductPadding - 1) / kProductPadding * kProductPadding;
}

struct WeightProductParams {
  const void* weight = nullptr;  // [out, in], rows one after the other
  WeightElement element = WeightElement::kFloat32;
  std::int64_t out = 0;
  std::int64_t in = 0;
  const float* x =
      nullptr;  // [num_rows, x_stride], zeros in channels in .. padded_channels(in) - 1
  std::int64_t x_stride = 0;  // at least padded_channels(in)
  std::int64_t num_rows = 0;  // 1 .. kMaxProductRows
};

// The specification: outputs first .. last - 1 of every row of x. y: [num_rows, last - first]
void weight_product_reference(const WeightProductParams& params, std::int64_t first,
                              std::int64_t last, float* y);
// The same in float32, vectorised. Neither first nor last change what an output is.
void weight_product(const WeightProductParams& params, std::int64_t first, std::int64_t last,
                    float* y);

}  // namespace kvc
