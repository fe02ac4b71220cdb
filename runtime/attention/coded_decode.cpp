#include <ATen/Parallel.h>

#include <algorithm>
#include <cmath>
#include <deque>
#include <utility>
#include <vector>

#include "model/parallel.h"
#include "runtime/attention/coded_attention.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/partial_attention.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/kernels/coded_attention.h"
#include "runtime/kernels/value_sums.h"

namespace kvc {
namespace {

constexpr std::int64_t kProductsPerThread = std::int64_t{1} << 20;

// Query heads that read the same blocks: one of keys and one of values, or one of both.
struct BlockQuery {
  DecodeAttentionParams params;
  CodedSegment segment;
  const CodedBlockFactors* values;
  std::int64_t first_channel = 0;  // of the values' block
  std::int64_t key_products = 0;   // that rebuild a token's keys
  // Where the first token is a code: what its keys have besides [num_kv_heads, head_dim], and its scores [num_heads].
  std::vector<float> first_keys, first_scores;

  std::int64_t width() const { return values->steps.size(0) + 1; }  // of the sums
  std::int64_t products_per_token() const { return key_products + params.num_heads * width(); }
};

// A layer's blocks of keys, or of values.
class PartBlocks {
 public:
  PartBlocks(const CodedLayer& layer, CodedParts part) : layer_(layer) {
    for (std::size_t i = 0; i < layer.coded.store.codes.size(); ++i) {
      const CodedParts of_block = layer.coded.spec(i).part;
      if (of_block == part || of_block == CodedParts::kBoth) {
        blocks_.push_back(i);
      }
    }
  }

  std::int64_t count() const { return static_cast<std::int64_t>(blocks_.size()); }
  bool is_whole() const { return layer_.coded.spec(blocks_.front()).head < 0; }
  // That of a KV head, and the head's number there.
  const CodedBlockFactors& factors(std::int64_t head) const { return layer_.coded.block(of(head)); }
  const CodedBlock& spec(std::int64_t head) const { return layer_.coded.spec(of(head)); }
  CodeTiles tiles(std::int64_t head) const { return layer_.coded.store.codes[of(head)].tiles(); }
  std::int64_t head_in_block(std::int64_t head) const { return is_whole() ? head : 0; }

 private:
  std::size_t of(std::int64_t head) const {
    return blocks_[is_whole() ? 0 : static_cast<std::size_t>(head)];
  }

  const CodedLayer& layer_;
  std::vector<std::size_t> blocks_;  // of the store
};

// What the first token's keys have besides, post-RoPE: position 0 has the angles zero, and their factor.
std::vector<float> first_keys(const at::Tensor& offset, std::int64_t first_channel,
                              const DecodeAttentionParams& params) {
  const RopeAngles& rope = params.raw_keys.rope;
  const auto* from = offset.const_data_ptr<float>() + first_channel;
  std::vector<float> keys(from, from + params.num_kv_heads * params.head_dim);
  for (std::int64_t head = 0; head < params.num_kv_heads; ++head) {
    for (std::int64_t d = 0; d < 2 * rope.num_pairs; ++d) {
      keys[static_cast<std::size_t>(head * params.head_dim + d)] *= rope.cos[0];
    }
  }
  return keys;
}

std::vector<BlockQuery> block_queries(const CodedLayer& layer, const DecodeAttentionParams& all,
                                      const std::int32_t* positions) {
  const PartBlocks keys(layer, CodedParts::kKeys), values(layer, CodedParts::kValues);
  const std::int64_t count = std::max(keys.count(), values.count());
  const std::int64_t kv_heads = all.num_kv_heads / count;
  std::vector<BlockQuery> queries;
  for (std::int64_t i = 0; i < count; ++i) {
    const CodedBlock& spec = keys.spec(i);
    const CodedBlockFactors &of_keys = keys.factors(i), &of_values = values.factors(i);
    BlockQuery& query = queries.emplace_back();
    query.params = all;
    query.params.num_heads /= count;
    query.params.num_kv_heads = kv_heads;
    query.params.query += i * query.params.num_heads * all.head_dim;
    const std::int64_t heads_of_keys = keys.is_whole() ? all.num_kv_heads : 1;
    query.segment = {
        .keys = keys.tiles(i),
        .values = values.tiles(i),
        .rows = of_keys.keys.data() + layer.index * heads_of_keys + keys.head_in_block(i),
        .first_position = layer.coded.plan.compression.sink_tokens,
        .positions = positions};
    query.values = &of_values;
    query.first_channel = values.head_in_block(i) * all.head_dim;
    query.key_products =
        kv_heads * all.head_dim * (spec.rotated ? 1 : of_keys.steps.size(0) / spec.bases + 1);
    if (of_keys.first_key.defined()) {
      query.first_keys = first_keys(of_keys.first_key[layer.index],
                                    keys.head_in_block(i) * all.head_dim, query.params);
      query.first_scores.assign(static_cast<std::size_t>(query.params.num_heads), -INFINITY);
      query.segment.first_token = {query.first_keys.data(), query.first_scores.data()};
    }
  }
  return queries;
}

// Tokens first .. last - 1 in `chunks` parts or fewer, of whole tiles but for the first and the last.
std::vector<std::pair<std::int64_t, std::int64_t>> split(std::int64_t first, std::int64_t last,
                                                         std::int64_t chunks) {
  const std::int64_t tiles =
      (last + kTileTokens - 1 - first / kTileTokens * kTileTokens) / kTileTokens;
  const std::int64_t step = (tiles + chunks - 1) / chunks * kTileTokens;
  std::vector<std::pair<std::int64_t, std::int64_t>> parts;
  for (std::int64_t begin = first; begin < last; begin = parts.back().second) {
    parts.emplace_back(begin, std::min(last, begin / kTileTokens * kTileTokens + step));
  }
  return parts;
}

// Joins a block's parts: values [num_heads, head_dim] and the log of the sums of exponentials, [num_heads].
void write_values(const BlockQuery& block, const Partials& parts, int index, float* values,
                  float* log_sum) {
  const CodedBlockFactors& factors = *block.values;
  const std::int64_t k = block.width() - 1, head_dim = block.params.head_dim;
  std::vector<float> sums(static_cast<std::size_t>(block.params.num_heads * block.width()));
  combine_partials(parts.all().data(), static_cast<std::int64_t>(parts.all().size()),
                   block.params.num_heads, block.width(), sums.data(), log_sum);
  // A factor of the layer, from the first channel of the block on.
  const auto rows = [&](const at::Tensor& of_layers, std::int64_t width) {
    return of_layers.const_data_ptr<float>() +
           (index * of_layers.size(1) + block.first_channel) * width;
  };
  ValueDecoder decoder{.rows = rows(factors.value_decoder, k),
                       .mean = rows(factors.value_mean, 1),
                       .steps = factors.steps.const_data_ptr<float>(),
                       .first_levels = factors.first_levels.const_data_ptr<float>(),
                       .head_dim = head_dim,
                       .num_coefficients = k};
  const float* first = block.first_scores.empty() ? nullptr : rows(factors.first_value, 1);
  const std::int64_t group = block.params.num_heads / block.params.num_kv_heads;
  for (std::int64_t head = 0; head < block.params.num_heads; head += group) {
    float* of_head = values + head * head_dim;
    decode_value_sums(decoder, sums.data() + head * block.width(), group, of_head);
    for (std::int64_t i = 0; first != nullptr && i < group; ++i) {
      const auto at = static_cast<std::size_t>(head + i);
      const float weight = std::exp(block.first_scores[at] - log_sum[at]);
      for (std::int64_t d = 0; d < head_dim; ++d) {
        of_head[i * head_dim + d] += weight * first[d];
      }
    }
    decoder.rows += head_dim * k;
    decoder.mean += head_dim;
    first += first == nullptr ? 0 : head_dim;
  }
}

}  // namespace

PartialAttention attend_codes_partly(const CodedLayer& layer, const at::Tensor& query,
                                     std::int64_t first) {
  const Decoder& decoder = layer.coded.decoder;
  const CodedStore& store = layer.coded.store;
  const ModelConfig& config = decoder.config();
  const std::int64_t last = store.num_codes();
  const at::Tensor positions =
      store.has_left ? store.positions().codes.rows(at::kInt) : at::Tensor();
  const std::int64_t num_tokens = positions.defined()
                                      ? positions.max().item<std::int32_t>() + 1
                                      : layer.coded.plan.compression.sink_tokens + last;
  // Kernels read the angles of a tile's positions from 0 on.
  const CodedKeys angles(decoder, layer.layer(), std::max(num_tokens, kTileTokens));
  const DecodeQuery whole(query, config.num_kv_heads, attention_rule(config, layer.layer()),
                          angles.raw_keys);
  const std::vector<BlockQuery> blocks =
      block_queries(layer, whole.params,
                    positions.defined() ? positions.const_data_ptr<std::int32_t>() : nullptr);
  std::int64_t products = 0;
  for (const BlockQuery& block : blocks) {
    products += (last - first) * block.products_per_token();
  }
  const std::int64_t chunks =
      std::clamp<std::int64_t>(products / kProductsPerThread, 1, planned_threads());
  const auto parts = split(first, last, chunks);
  const auto per_block = static_cast<std::int64_t>(parts.size());
  const auto count = static_cast<std::int64_t>(blocks.size()) * per_block;
  std::deque<Partials> memory;  // of each block
  for (const BlockQuery& block : blocks) {
    memory.emplace_back(parts.size(), block.params.num_heads, block.width());
  }
  parallel_pieces(count, (count + chunks - 1) / chunks, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto of = static_cast<std::size_t>(i / per_block);
      const auto part = static_cast<std::size_t>(i % per_block);
      coded_attention_partial(blocks[of].params, blocks[of].segment, parts[part].first,
                              parts[part].second, memory[of][part]);
    }
  });
  PartialAttention all{at::empty({query.size(0), config.head_dim}, at::kFloat),
                       at::empty({query.size(0)}, at::kFloat)};
  auto* values = all.output.mutable_data_ptr<float>();
  auto* log_sum = all.log_sum.mutable_data_ptr<float>();
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    write_values(blocks[i], memory[i], layer.index, values, log_sum);
    values += blocks[i].params.num_heads * config.head_dim;
    log_sum += blocks[i].params.num_heads;
  }
  return all;
}

}  // namespace kvc
