#include "runtime/reuse/token_match.h"

#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <cmath>
#include <tuple>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

constexpr double kTheta = 10000;
constexpr std::int64_t kTargetTile = 512, kDonorTile = 1024;  // 2 MB of cosines
constexpr std::int64_t kSignBits = 64;
constexpr double kFarBits = 30;

// The nearest tokens of one tile of targets.
std::tuple<at::Tensor, at::Tensor> nearest(const at::Tensor& target, const at::Tensor& donor) {
  at::Tensor best, index;
  for (std::int64_t first = 0; first < donor.size(0); first += kDonorTile) {
    const at::Tensor tile = donor.narrow(0, first, std::min(kDonorTile, donor.size(0) - first));
    auto [cosine, column] = at::mm(target, tile.t()).max(1);
    column += first;
    if (!best.defined()) {
      std::tie(best, index) = std::tuple(cosine, column);
      continue;
    }
    const at::Tensor closer = cosine > best;
    best = at::where(closer, cosine, best);
    index = at::where(closer, column, index);
  }
  return {best, index};
}

at::Tensor sign_bits(const at::Tensor& rows, const at::Tensor& planes) {
  return at::mm(rows, planes) >= 0;
}

}  // namespace

at::Tensor turned_embeddings(const at::Tensor& embeddings) {
  const std::int64_t num_tokens = embeddings.size(0), width = embeddings.size(1);
  KVC_CHECK(width % 2 == 0, "embeddings of {} channels: expected an even number", width);
  const at::Tensor pair = at::arange(0, width, 2, at::kDouble);
  const at::Tensor angles =
      at::outer(at::arange(num_tokens, at::kDouble), at::exp(pair * (-std::log(kTheta) / width)));
  const at::Device device = embeddings.device();
  const at::Tensor cos = angles.cos().to(device, at::kFloat),
                   sin = angles.sin().to(device, at::kFloat);
  const at::Tensor x = embeddings.to(at::kFloat).unflatten(1, {width / 2, 2});
  const at::Tensor even = x.select(2, 0), odd = x.select(2, 1);
  const at::Tensor turned =
      at::stack({even * cos - odd * sin, even * sin + odd * cos}, 2).flatten(1);
  return turned / turned.norm(2, {1}, /*keepdim=*/true).clamp_min(1e-30);
}

TokenMatch match_tokens(const at::Tensor& target, const at::Tensor& donor) {
  std::vector<at::Tensor> cosines, indices;
  for (std::int64_t first = 0; first < target.size(0); first += kTargetTile) {
    auto [cosine, index] =
        nearest(target.narrow(0, first, std::min(kTargetTile, target.size(0) - first)), donor);
    cosines.push_back(cosine);
    indices.push_back(index);
  }
  return {.index = at::cat(indices), .cosine = at::cat(cosines)};
}

double prompt_similarity(PromptSimilarity kind, const TokenMatch& match, const at::Tensor& target,
                         const at::Tensor& donor, std::uint64_t seed) {
  if (kind == PromptSimilarity::kCosine) {
    return match.cosine.clamp_min(0).mean(at::kDouble).item<double>();
  }
  const at::Tensor planes =
      at::randn({target.size(1), kSignBits}, at::detail::createCPUGenerator(seed), at::kFloat)
          .to(target.device());
  const at::Tensor differs =
      at::ne(sign_bits(target, planes), sign_bits(donor, planes).index_select(0, match.index));
  const at::Tensor bits = differs.sum(1, /*keepdim=*/false, at::kDouble);
  return (1 - bits / kFarBits).clamp_min(0).mean().item<double>();
}

}  // namespace kvc
