#include "runtime/compression/reconstruction.h"

#include <algorithm>
#include <type_traits>

#include "model/linear.h"
#include "model/parallel.h"

namespace kvc {
namespace {

// to[row, places[i]] = from[row, numbers[i]], where `numbers` are 0, 1, 2 ... if null; kRows rows together.
template <int kRows, typename T>
void scatter(const T* from, std::int64_t from_stride, const std::int64_t* numbers,
             const std::int64_t* places, std::int64_t count, std::int64_t to_stride, T* to) {
  for (std::int64_t i = 0; i < count; ++i) {
    const T* number = from + (numbers == nullptr ? i : numbers[i]);
    T* place = to + places[i];
    for (int row = 0; row < kRows; ++row) {
      place[row * to_stride] = number[row * from_stride];
    }
  }
}

// Row by row, a number of `latent` or of `others` for every channel. T: of an element's size.
template <typename T>
void arrange(const KeptChannels& kept, const at::Tensor& latent, const at::Tensor& others,
             at::Tensor& key) {
  constexpr std::int64_t kChannelsPerThread = std::int64_t{1} << 15;
  constexpr int kTogether = 4;
  const auto* channels = kept.channels.const_data_ptr<std::int64_t>();
  const auto* numbers = kept.numbers.const_data_ptr<std::int64_t>();
  const auto* other_channels = kept.others.const_data_ptr<std::int64_t>();
  const std::int64_t num_kept = kept.channels.size(0), num_others = kept.others.size(0);
  const std::int64_t width = key.size(1), latent_width = latent.stride(0);
  const auto* from = static_cast<const T*>(latent.const_data_ptr());
  const auto* from_others = static_cast<const T*>(others.const_data_ptr());
  auto* to = static_cast<T*>(key.mutable_data_ptr());
  const auto rows = [&]<int kRows>(std::int64_t row, std::integral_constant<int, kRows>) {
    scatter<kRows>(from + row * latent_width, latent_width, numbers, channels, num_kept, width,
                   to + row * width);
    scatter<kRows>(from_others + row * num_others, num_others, nullptr, other_channels, num_others,
                   width, to + row * width);
  };
  const auto body = [&](std::int64_t begin, std::int64_t end) {
    std::int64_t row = begin;
    for (; row + kTogether <= end; row += kTogether) {
      rows(row, std::integral_constant<int, kTogether>());
    }
    for (; row < end; ++row) {
      rows(row, std::integral_constant<int, 1>());
    }
  };
  parallel_pieces(latent.size(0), std::max<std::int64_t>(1, kChannelsPerThread / width), body);
}

}  // namespace

KeptChannels kept_channels(const at::Tensor& proj) {
  const at::Tensor ones = proj == 1;
  const at::Tensor is_unit = at::logical_and((proj != 0).sum(1) == 1, ones.any(1));
  const at::Tensor channels = is_unit.nonzero().squeeze(1);
  if (channels.size(0) == 0) {
    return {};
  }
  const at::Tensor others = is_unit.logical_not().nonzero().squeeze(1);
  const at::Tensor numbers = ones.index_select(0, channels).to(at::kByte).argmax(1);
  return {channels, numbers, others, proj.index_select(0, others)};
}

at::Tensor rebuild_key(const Reconstruction& layer, const at::Tensor& latent) {
  if (!layer.kept.channels.defined()) {
    return float_linear(latent, layer.key, {});
  }
  const at::Tensor others = float_linear(latent, layer.kept.proj, {});
  at::Tensor key = at::empty({latent.size(0), layer.key.size(0)}, latent.options());
  key.element_size() == 2 ? arrange<std::uint16_t>(layer.kept, latent, others, key)
                          : arrange<std::uint32_t>(layer.kept, latent, others, key);
  return key;
}

const at::Tensor& key_offset(const LayerWeights& weights, const Reconstruction& layer) {
  return layer.is_principal ? layer.key_mean : weights.k_proj.bias;
}
const at::Tensor& value_offset(const LayerWeights& weights, const Reconstruction& layer) {
  return layer.is_principal ? layer.value_mean : weights.v_proj.bias;
}

at::Tensor reconstruct_key(const Decoder& decoder, const LayerWeights& weights,
                           const GroupFactors& factors, const Reconstruction& layer,
                           const at::Tensor& latent) {
  const ModelConfig& config = decoder.config();
  at::Tensor key = rebuild_key(layer, latent.narrow(1, 0, factors.key_rank));
  if (const at::Tensor& offset = key_offset(weights, layer); offset.defined()) {
    key.add_(offset);
  }
  return key.view({-1, config.num_kv_heads, config.head_dim});
}

KeyValue reconstruct(const Decoder& decoder, const LayerWeights& weights,
                     const GroupFactors& factors, const Reconstruction& layer,
                     const at::Tensor& latent) {
  const at::Tensor key = reconstruct_key(decoder, weights, factors, layer, latent);
  const Linear value{layer.value, value_offset(weights, layer)};
  return {key, value(latent.narrow(1, latent.size(1) - factors.value_rank, factors.value_rank))
                   .view_as(key)};
}

}  // namespace kvc
