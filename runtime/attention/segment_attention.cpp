#include "runtime/attention/segment_attention.h"

#include <algorithm>
#include <cmath>

namespace kvc {
namespace {

at::Tensor allowed_mask(const at::Tensor& query_positions, const at::Tensor& key_positions,
                        std::optional<std::int64_t> window) {
  const at::Tensor distance = query_positions.unsqueeze(1) - key_positions.unsqueeze(0);  // [T, n]
  at::Tensor allowed = distance >= 0;
  return window ? allowed & (distance < *window) : allowed;
}

// Sums of values under probabilities of one segment. probabilities: [num_kv_heads, rows, n]
// float32.
at::Tensor weighted_values(const Segment& segment, const at::Tensor& probabilities,
                           std::int64_t num_kv_heads, std::int64_t head_dim) {
  if (segment.value.defined()) {
    return at::bmm(probabilities, heads_first(segment.value));
  }
  const auto dtype = segment.latent.scalar_type();
  const at::Tensor flat = probabilities.flatten(0, 1).to(dtype);  // [num_kv_heads * rows, n]
  const at::Tensor sums =
      at::mm(flat, segment.latent).view({num_kv_heads, -1, segment.latent.size(1)});
  const at::Tensor proj = segment.value_proj.view({num_kv_heads, head_dim, -1});
  at::Tensor output = at::bmm(sums, proj.transpose(1, 2)).to(at::kFloat);
  if (segment.value_bias.defined()) {
    output += probabilities.sum(-1, true) * segment.value_bias.view({num_kv_heads, 1, head_dim});
  }
  return output;
}

struct SegmentedKeys {
  std::vector<at::Tensor> keys;  // [num_kv_heads, head_dim, n] float32 each
  at::Tensor positions;          // [total]
  std::int64_t total = 0;
};

SegmentedKeys gather_keys(const std::vector<Segment>& segments) {
  SegmentedKeys gathered;
  std::vector<at::Tensor> positions;
  for (const Segment& segment : segments) {
    gathered.keys.push_back(heads_first(segment.key).transpose(1, 2));
    positions.push_back(segment.positions);
    gathered.total += segment.key.size(0);
  }
  gathered.positions = at::cat(positions);
  return gathered;
}

// scores: [num_kv_heads, rows, tokens of all segments]
void add_biases(const std::vector<Segment>& segments, const at::Tensor& scores) {
  std::int64_t begin = 0;
  for (const Segment& segment : segments) {
    const std::int64_t count = segment.key.size(0);
    if (segment.score_bias.defined()) {
      scores.narrow(-1, begin, count).add_(segment.score_bias.t().unsqueeze(1));
    }
    begin += count;
  }
}

// query: [T, num_heads, head_dim]. [T, num_heads * head_dim] float32
at::Tensor attend_chunk(const at::Tensor& query, const at::Tensor& query_positions,
                        const std::vector<Segment>& segments, const SegmentedKeys& gathered,
                        const AttentionRule& rule) {
  const std::int64_t num_queries = query.size(0), num_heads = query.size(1),
                     head_dim = query.size(2);
  const std::int64_t num_kv_heads = segments.front().key.size(1);
  const std::int64_t heads_per_kv = num_heads / num_kv_heads;
  const double scale = rule.scale.value_or(1.0 / std::sqrt(static_cast<double>(head_dim)));
  const at::Tensor queries = (query.to(at::kFloat) * scale)
                                 .view({num_queries, num_kv_heads, heads_per_kv, head_dim})
                                 .permute({1, 2, 0, 3})
                                 .reshape({num_kv_heads, heads_per_kv * num_queries, head_dim});
  std::vector<at::Tensor> pieces;
  for (const at::Tensor& keys : gathered.keys) {
    pieces.push_back(at::bmm(queries, keys));
  }
  at::Tensor scores = at::cat(pieces, -1);  // [num_kv_heads, heads_per_kv * T, total]
  if (rule.softcap != 0) {
    scores.div_(rule.softcap).tanh_().mul_(rule.softcap);
  }
  add_biases(segments, scores);
  if (num_queries > 1 || rule.window) {
    const at::Tensor allowed = allowed_mask(query_positions, gathered.positions, rule.window);
    scores.view({num_kv_heads, heads_per_kv, num_queries, gathered.total})
        .masked_fill_(allowed.logical_not(), -INFINITY);
  }
  const at::Tensor probabilities = at::softmax(scores, -1);
  at::Tensor output = at::zeros_like(queries);
  std::int64_t begin = 0;
  for (const Segment& segment : segments) {
    const std::int64_t count = segment.key.size(0);
    output +=
        weighted_values(segment, probabilities.narrow(-1, begin, count), num_kv_heads, head_dim);
    begin += count;
  }
  return output.view({num_kv_heads, heads_per_kv, num_queries, head_dim})
      .permute({2, 0, 1, 3})
      .reshape({num_queries, num_heads * head_dim});
}

}  // namespace

bool prefers_rank_space(std::int64_t num_queries, std::int64_t num_heads, std::int64_t head_dim,
                        std::int64_t kv_dim, std::int64_t rank) {
  return num_queries * num_heads * (rank - head_dim) < rank * kv_dim;
}

at::Tensor attend_segments(const at::Tensor& query, const at::Tensor& query_positions,
                           const std::vector<Segment>& segments, const AttentionRule& rule) {
  const SegmentedKeys gathered = gather_keys(segments);
  const std::int64_t num_queries = query.size(0);
  const std::int64_t step = std::max<std::int64_t>(
      1, kScoresPerChunk / std::max<std::int64_t>(1, query.size(1) * gathered.total));
  std::vector<at::Tensor> outputs;
  for (std::int64_t first = 0; first < num_queries; first += step) {
    const std::int64_t count = std::min(step, num_queries - first);
    outputs.push_back(attend_chunk(query.narrow(0, first, count),
                                   query_positions.narrow(0, first, count), segments, gathered,
                                   rule));
  }
  return (outputs.size() == 1 ? outputs.front() : at::cat(outputs)).to(query.scalar_type());
}

}  // namespace kvc
