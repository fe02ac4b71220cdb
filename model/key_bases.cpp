#include "model/key_bases.h"

#include <string>

#include "core/error.h"
#include "model/fused_kv.h"

namespace kvc {

at::Tensor key_basis_channels(const ModelConfig& config, int layer, int bases) {
  const ChannelPairs pairs = channel_pairs(config, layer);
  return at::cat({pairs.first.view({bases, -1}), pairs.second.view({bases, -1})}, 1);
}

SplitTransform split_bases(const BasisTransform& whole, const at::Tensor& channels) {
  // The basis of a coefficient is the one that holds its largest weight.
  const at::Tensor by_basis = whole.decoder.index_select(0, channels.flatten())
                                  .view({channels.size(0), channels.size(1), -1});
  const at::Tensor basis = by_basis.square().sum(1).argmax(0);
  const at::Tensor of_coefficient = channels.index_select(0, basis);  // [k, width]
  return {{whole.encoder.gather(1, of_coefficient),
           whole.decoder.gather(0, of_coefficient.t().contiguous())},
          basis.to(at::kFloat)};
}

BasisTransform join_bases(const SplitTransform& bases, const at::Tensor& channels,
                          const std::string& name) {
  const at::Tensor basis = bases.basis.to(at::kLong);
  KVC_CHECK(basis.eq(bases.basis)
                .logical_and(basis >= 0)
                .logical_and(basis < channels.size(0))
                .all()
                .item<bool>(),
            "{}: a number that is no basis, expected 0 to {}; export again", name,
            channels.size(0) - 1);
  KVC_CHECK(
      at::bincount(basis, {}, channels.size(0)).max().item<std::int64_t>() <= channels.size(1),
      "{}: a basis of {} channels with more coefficients; export again", name, channels.size(1));
  const at::Tensor of_coefficient = channels.index_select(0, basis);
  const std::int64_t k = basis.size(0), n = channels.numel();
  return {at::zeros({k, n}, at::kFloat).scatter(1, of_coefficient, bases.transform.encoder),
          at::zeros({n, k}, at::kFloat)
              .scatter(0, of_coefficient.t().contiguous(), bases.transform.decoder)};
}

}  // namespace kvc
