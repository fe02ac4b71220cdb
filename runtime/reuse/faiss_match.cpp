#include "runtime/reuse/faiss_match.h"

#include <faiss/IndexFlat.h>
#include <faiss/IndexIVFFlat.h>
#include <faiss/IndexLSH.h>

#include <algorithm>
#include <cmath>
#include <memory>
#include <tuple>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::int64_t kCandidates = 16, kTile = 256;
constexpr int kSignBits = 512;        // of LSH
constexpr std::size_t kProbed = 8;    // clusters of IVF that are searched
constexpr int kFewestPerCluster = 1;  // of a clustering that FAISS does not warn of

// An index and what it refers to.
struct TokenIndex {
  std::unique_ptr<faiss::IndexFlatIP> clusters;
  std::unique_ptr<faiss::Index> index;
};

TokenIndex index_of(TokenSearch search, const at::Tensor& donor) {
  const std::int64_t num_tokens = donor.size(0), width = donor.size(1);
  TokenIndex found;
  if (search == TokenSearch::kFaissLsh) {
    found.index = std::make_unique<faiss::IndexLSH>(width, kSignBits);
  } else {
    const auto num_clusters = static_cast<std::size_t>(std::sqrt(static_cast<double>(num_tokens)));
    found.clusters = std::make_unique<faiss::IndexFlatIP>(width);
    auto index =
        std::make_unique<faiss::IndexIVFFlat>(found.clusters.get(), static_cast<std::size_t>(width),
                                              num_clusters, faiss::METRIC_INNER_PRODUCT);
    index->nprobe = kProbed;
    index->cp.min_points_per_centroid = kFewestPerCluster;
    found.index = std::move(index);
  }
  const auto* rows = donor.const_data_ptr<float>();
  found.index->train(num_tokens, rows);
  found.index->add(num_tokens, rows);
  return found;
}

// The candidate, of [n, k], with the largest cosine, the lower one of equals; -1 is none.
std::tuple<at::Tensor, at::Tensor> nearest_of(const at::Tensor& target, const at::Tensor& donor,
                                              const at::Tensor& candidates) {
  const at::Tensor ascending = std::get<0>(candidates.sort(1));
  const at::Tensor rows = donor.index_select(0, ascending.clamp_min(0).flatten())
                              .view({target.size(0), candidates.size(1), donor.size(1)});
  const at::Tensor cosines =
      at::bmm(rows, target.unsqueeze(2)).squeeze(2).masked_fill(ascending < 0, -INFINITY);
  const auto [cosine, column] = cosines.max(1, /*keepdim=*/true);
  return {cosine.squeeze(1), ascending.gather(1, column).squeeze(1).clamp_min(0)};
}

}  // namespace

bool has_faiss() { return true; }

TokenMatch match_with_faiss(TokenSearch search, const at::Tensor& target, const at::Tensor& donor) {
  const at::Tensor targets = target.contiguous(), donors = donor.contiguous();
  const TokenIndex tokens = index_of(search, donors);
  const std::int64_t count = targets.size(0), wanted = std::min(kCandidates, donors.size(0));
  at::Tensor labels = at::empty({count, wanted}, at::kLong);
  at::Tensor distances = at::empty({count, wanted}, at::kFloat);
  tokens.index->search(count, targets.const_data_ptr<float>(), wanted,
                       distances.mutable_data_ptr<float>(),
                       labels.mutable_data_ptr<std::int64_t>());
  TokenMatch match{.index = at::empty({count}, at::kLong),
                   .cosine = at::empty({count}, at::kFloat)};
  for (std::int64_t first = 0; first < count; first += kTile) {
    const std::int64_t rows = std::min(kTile, count - first);
    const auto [cosine, index] =
        nearest_of(targets.narrow(0, first, rows), donors, labels.narrow(0, first, rows));
    match.cosine.narrow(0, first, rows).copy_(cosine);
    match.index.narrow(0, first, rows).copy_(index);
  }
  return match;
}

}  // namespace kvc
