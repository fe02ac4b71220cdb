// Statistics for fits of fused layers: sums over calibration tokens of products between layers' keys
// (before RoPE, after their norm), and between their values.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <map>
#include <utility>
#include <vector>

#include "convert/methods/methods.h"
#include "model/fused_kv.h"

namespace kvc {

enum class KvPart { kKey, kValue };

// Which products are summed.
//   same_head   of a channel pair with the same pair of the same KV head
//   all_heads   with that pair of every KV head
//   matrices    of every channel with every channel
enum class ProductScope { kSameHead, kAllHeads, kMatrices };

// Sums of one layer. [num_kv_heads, head_dim] float64
struct ChannelSums {
  at::Tensor sum, squares;
};

class FusionMoments {
 public:
  FusionMoments(const ModelConfig& config, ProductScope scope) : config_(config), scope_(scope) {}

  // Requests the products of layers a and b, and the sums of both. Call before tokens are added.
  void want(int a, int b);
  bool wanted(int layer) const { return sums_.count({KvPart::kKey, layer}) != 0; }
  // Adds tokens of layer a, and of the layers b <= a for which rows_of(part, b) returns rows.
  // [num_tokens, num_kv_heads, head_dim]
  template <typename RowsOf>
  void add(int a, const RowsOf& rows_of) {
    for (const KvPart part : {KvPart::kKey, KvPart::kValue}) {
      const at::Tensor rows = rows_of(part, a).to(at::kDouble);
      add_sums(part, a, rows);
      for (auto& [pair, product] : products_) {
        if (pair.first == part && pair.second.first == a) {
          add_product(pair.second.first, rows, rows_of(part, pair.second.second), product);
        }
      }
    }
  }

  const ModelConfig& config() const { return config_; }
  const ChannelSums& sums(KvPart part, int layer) const { return sums_.at({part, layer}); }
  std::int64_t num_tokens() const { return num_tokens_; }
  void count_tokens(std::int64_t tokens) { num_tokens_ += tokens; }
  // sum over tokens of component c of a's channel pair times component d of b's, for KV head heads_a[g] of a
  // and heads_b[g] of b. [num_kv_heads, 2 (c), 2 (d), head_dim / 2]. Scopes of pairs only.
  at::Tensor products(KvPart part, int a, const at::Tensor& heads_a, int b,
                      const at::Tensor& heads_b) const;
  // sum over tokens of a b^T. [kv_dim, kv_dim]. Scope matrices only.
  at::Tensor matrix(KvPart part, int a, int b) const;

 private:
  using Key = std::pair<KvPart, std::pair<int, int>>;  // the first layer is no lower
  void add_sums(KvPart part, int layer, const at::Tensor& rows);
  void add_product(int layer, const at::Tensor& a, const at::Tensor& b, at::Tensor& product) const;

  const ModelConfig& config_;
  ProductScope scope_;
  std::int64_t num_tokens_ = 0;
  std::map<std::pair<KvPart, int>, ChannelSums> sums_;
  std::map<Key, at::Tensor> products_;
};

// Passes over the job's tokens once. `sources` [layer]: layers that the fits of a layer may read; those of
// other layers are empty. Large rows of source layers are in a file.
FusionMoments measure_fusion_moments(const ConversionJob& job,
                                     const std::vector<std::vector<int>>& sources,
                                     ProductScope scope);

}  // namespace kvc
