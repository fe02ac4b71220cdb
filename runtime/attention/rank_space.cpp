#include "runtime/attention/rank_space.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "model/linear.h"
#include "model/parallel.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/compression/reconstruction.h"
#include "runtime/kernels/rank_space_attention.h"
#include "runtime/store/element_type.h"

namespace kvc {
namespace {

// Rows of a part: enough that the product with the key projection is as fast as a large one, and few
// enough that the tile's latents and keys stay in the cache until they were attended to.
constexpr std::int64_t kPartTokens = 2048;

// What turns a rebuilt key into one that attention reads: by the kernel, unless the norm is one over all
// heads or has a bias. The tensors hold what `raw` points to.
struct KeyFinish {
  CodedKeys angles;
  at::Tensor bias, norm;
  RawKeys raw;
  bool by_kernel;

  KeyFinish(const Decoder& decoder, int layer, const Reconstruction& reconstruction,
            std::int64_t num_positions)
      : angles(decoder, layer, num_positions), raw(angles.raw_keys) {
    const LayerWeights& weights = decoder.layer(layer);
    const Norm& k_norm = weights.k_norm;
    const bool norms = !reconstruction.is_principal && k_norm.defined();
    by_kernel =
        !norms || (!k_norm.bias.defined() && k_norm.weight.numel() == decoder.config().head_dim);
    if (const at::Tensor& offset = key_offset(weights, reconstruction); offset.defined()) {
      bias = offset.to(at::kFloat).contiguous();
      raw.bias = bias.const_data_ptr<float>();
    }
    if (by_kernel && norms) {
      norm = k_norm.weight.to(at::kFloat).contiguous();
      raw.norm = norm.const_data_ptr<float>();
      raw.norm_epsilon = static_cast<float>(k_norm.eps);
    }
  }
};

// Attention of the query heads of some KV heads, whose keys and values `reconstruction` rebuilds.
class TileAttention {
 public:
  TileAttention(const Decoder& decoder, int layer, const GroupFactors& factors,
                const Reconstruction& reconstruction, std::int64_t num_kv_heads,
                const at::Tensor& query, std::int64_t num_positions)
      : decoder_(decoder),
        layer_(layer),
        factors_(factors),
        reconstruction_(reconstruction),
        rebuilt_(decoder, layer, reconstruction, num_positions),
        query_(query, num_kv_heads, attention_rule(decoder.config(), layer), rebuilt_.raw),
        threads_(static_cast<std::size_t>(planned_threads())),
        sums_(threads_, query.size(0), factors.value_rank) {
    sums_.clear();
  }

  // latents [n, rank], contiguous, of the decoder's dtype; positions [n] int32
  void add(const at::Tensor& latents, const at::Tensor& positions) {
    const std::int64_t count = latents.size(0);
    const at::Tensor keys =
        finished(rebuild_key(reconstruction_, latents.narrow(1, 0, factors_.key_rank)), positions);
    const void* key_block = keys.const_data_ptr();
    const void* latent_block = latents.const_data_ptr();
    const KvElement element = element_of(decoder_.dtype());
    const RankSpaceSegment segment{.keys = {.key = {&key_block, count, count, element},
                                            .positions = positions.const_data_ptr<std::int32_t>(),
                                            .raw_key = rebuilt_.by_kernel},
                                   .latents = {&latent_block, count, count, element},
                                   .width = latents.size(1),
                                   .first_channel = latents.size(1) - factors_.value_rank,
                                   .rank = factors_.value_rank};
    attend(segment, count);
  }

  PartialAttention sums() const { return sums_.combine(); }

 private:
  at::Tensor finished(const at::Tensor& keys, const at::Tensor& positions) const {
    if (rebuilt_.by_kernel) {
      return keys;
    }
    const LayerWeights& weights = decoder_.layer(layer_);
    const at::Tensor biased = weights.k_proj.bias.defined() ? keys + weights.k_proj.bias : keys;
    return finish_key(weights, decoder_.rope(), layer_,
                      biased.unflatten(1, {-1, decoder_.config().head_dim}),
                      positions.to(at::kLong))
        .contiguous();
  }

  void attend(const RankSpaceSegment& segment, std::int64_t count) {
    const std::int64_t numbers = count * query_.params.num_heads * segment.rank;
    const std::int64_t pieces = std::clamp<std::int64_t>(
        numbers / kNumbersPerThread, 1, std::min(count, static_cast<std::int64_t>(threads_)));
    parallel_pieces(pieces, 1, [&](std::int64_t begin, std::int64_t end) {
      for (std::int64_t piece = begin; piece < end; ++piece) {
        const auto index = static_cast<std::size_t>(piece);
        add_rank_space_attention(query_.params, segment, count * piece / pieces,
                                 count * (piece + 1) / pieces, sums_[index]);
      }
    });
  }

  const Decoder& decoder_;
  int layer_;
  const GroupFactors& factors_;
  const Reconstruction& reconstruction_;
  KeyFinish rebuilt_;
  DecodeQuery query_;
  std::size_t threads_;
  Partials sums_;  // one per thread
};

// Sums of latents [num_heads, value_rank] to sums of values [num_heads, head_dim], float32.
at::Tensor project_values(const LayerWeights& weights, const Reconstruction& layer,
                          std::int64_t num_kv_heads, const at::Tensor& sums) {
  const at::Tensor& proj = layer.value;
  const at::Tensor latents = sums.to(proj.scalar_type());
  const std::int64_t heads_per_kv = sums.size(0) / num_kv_heads;
  const std::int64_t head_dim = proj.size(0) / num_kv_heads;
  std::vector<at::Tensor> outputs;
  for (std::int64_t kv_head = 0; kv_head < num_kv_heads; ++kv_head) {
    const auto own = [&](const at::Tensor& x) {
      return x.defined() ? x.narrow(0, kv_head * head_dim, head_dim) : x;
    };
    outputs.push_back(float_linear(latents.narrow(0, kv_head * heads_per_kv, heads_per_kv),
                                   own(proj), own(value_offset(weights, layer))));
  }
  return at::cat(outputs).to(at::kFloat);
}

// What rebuilds the channels of one KV head.
Reconstruction of_head(const Reconstruction& layer, std::int64_t kv_head, std::int64_t head_dim) {
  const auto own = [&](const at::Tensor& x) {
    return x.defined() ? x.narrow(0, kv_head * head_dim, head_dim) : x;
  };
  Reconstruction head{own(layer.key), own(layer.value)};
  head.is_principal = true;
  head.key_mean = own(layer.key_mean);
  head.value_mean = own(layer.value_mean);
  return head;
}

// Rows at `positions`, ascending, whose latents read(first, count) gives some at a time.
template <typename Read>
PartialAttention attend_tiles(const Decoder& decoder, int layer, const GroupFactors& factors,
                              const Reconstruction& reconstruction, std::int64_t num_kv_heads,
                              const at::Tensor& query, const at::Tensor& positions,
                              const Read& read) {
  const std::int64_t count = positions.size(0);
  TileAttention tiles(decoder, layer, factors, reconstruction, num_kv_heads, query,
                      positions.const_data_ptr<std::int32_t>()[count - 1] + 1);
  for (std::int64_t first = 0; first < count; first += kPartTokens) {
    const std::int64_t rows = std::min(kPartTokens, count - first);
    tiles.add(read(first, rows), positions.narrow(0, first, rows));
  }
  PartialAttention whole = tiles.sums();
  whole.output = project_values(decoder.layer(layer), reconstruction, num_kv_heads, whole.output);
  return whole;
}

}  // namespace

PartialAttention rank_space_attention(const Decoder& decoder, int layer,
                                      const GroupFactors& factors, const at::Tensor& query,
                                      const LatentRange& range) {
  return attend_tiles(decoder, layer, factors, range.layer, decoder.config().num_kv_heads, query,
                      range.positions.slice(0, range.first, range.last),
                      [&](std::int64_t first, std::int64_t count) {
                        return range.latents.rows(range.first + first, count, decoder.dtype());
                      });
}

PartialAttention rank_space_attention(const Decoder& decoder, int layer,
                                      const GroupFactors& factors, const at::Tensor& query,
                                      const ChosenLatents& chosen) {
  const at::Tensor latents = chosen.latents.rows(chosen.runs, decoder.dtype());
  return attend_tiles(
      decoder, layer, factors, of_head(chosen.layer, chosen.kv_head, decoder.config().head_dim), 1,
      query, chosen.positions,
      [&](std::int64_t first, std::int64_t count) { return latents.narrow(0, first, count); });
}

}  // namespace kvc
