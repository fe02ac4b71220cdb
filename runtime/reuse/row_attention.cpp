#include "runtime/reuse/row_attention.h"

#include <algorithm>
#include <cmath>

namespace kvc {
namespace {

constexpr std::int64_t kScoresPerBlock = std::int64_t{1} << 21;  // 8 MB of float32

}  // namespace

// Consecutive rows and the tokens that any of them sees.
struct RowAttention::Block {
  std::int64_t first = 0, count = 0;  // rows
  at::Tensor query;                   // [num_kv_heads, heads per kv head * count, head_dim] float32
  at::Tensor positions;               // [count]
  std::int64_t all_see = 0;     // tokens that the first row sees; without a window all rows do
  std::int64_t num_tokens = 0;  // that the last row sees
};

RowAttention::RowAttention(const at::Tensor& key, const at::Tensor& value,
                           const AttentionRule& rule)
    : rule_(rule) {
  const double scale = rule.scale.value_or(1 / std::sqrt(static_cast<double>(key.size(2))));
  key_ = (key.to(at::kFloat) * scale).permute({1, 2, 0}).contiguous();
  value_ = value.to(at::kFloat).transpose(0, 1).contiguous();
}

RowAttention::Block RowAttention::block(const at::Tensor& query, const at::Tensor& positions,
                                        std::int64_t first) const {
  const std::int64_t num_heads = query.size(1), num_kv_heads = key_.size(0);
  const std::int64_t rows = std::max<std::int64_t>(
      1, kScoresPerBlock / (num_heads * std::max<std::int64_t>(num_tokens(), 1)));
  Block block;
  block.first = first;
  block.count = std::min(rows, query.size(0) - first);
  block.positions = positions.narrow(0, first, block.count);
  block.all_see = block.positions[0].item<std::int64_t>() + 1;
  block.num_tokens = block.positions[block.count - 1].item<std::int64_t>() + 1;
  block.query = query.narrow(0, first, block.count)
                    .to(at::kFloat)
                    .unflatten(1, {num_kv_heads, num_heads / num_kv_heads})
                    .permute({1, 2, 0, 3})
                    .reshape({num_kv_heads, -1, query.size(2)});
  return block;
}

void RowAttention::mask(const Block& block, at::Tensor& scores) const {
  const std::int64_t first = rule_.window ? 0 : block.all_see;
  const std::int64_t count = block.num_tokens - first;
  if (count == 0) {
    return;
  }
  const at::Tensor distance =
      block.positions.unsqueeze(1) - at::arange(first, block.num_tokens, at::kLong).unsqueeze(0);
  at::Tensor hidden = distance < 0;
  if (rule_.window) {
    hidden.logical_or_(distance >= *rule_.window);
  }
  scores.unflatten(1, {-1, block.count})
      .narrow(3, first, count)
      .masked_fill_(hidden.to(scores.device()), -INFINITY);
}

// [num_kv_heads, heads per kv head * rows, tokens]
at::Tensor RowAttention::probabilities(const Block& block) const {
  at::Tensor scores = at::bmm(block.query, key_.narrow(2, 0, block.num_tokens));
  if (rule_.softcap != 0) {
    scores.div_(rule_.softcap).tanh_().mul_(rule_.softcap);
  }
  mask(block, scores);
  return at::softmax(scores, -1);
}

at::Tensor RowAttention::attend(const at::Tensor& query, const at::Tensor& positions,
                                std::vector<ReceivedAttention>* received) const {
  std::vector<at::Tensor> outputs;
  for (std::int64_t first = 0; first < query.size(0);) {
    const Block rows = block(query, positions, first);
    const at::Tensor attention = probabilities(rows);
    outputs.push_back(at::bmm(attention, value_.narrow(1, 0, rows.num_tokens))
                          .unflatten(1, {-1, rows.count})
                          .permute({2, 0, 1, 3})
                          .reshape({rows.count, -1}));
    if (received != nullptr) {
      received->push_back({rows.first, rows.count, attention.sum(at::IntArrayRef{0, 1})});
    }
    first += rows.count;
  }
  return at::cat(outputs).to(query.scalar_type());
}

std::vector<ReceivedAttention> RowAttention::received(const at::Tensor& query,
                                                      const at::Tensor& positions) const {
  std::vector<ReceivedAttention> all;
  for (std::int64_t first = 0; first < query.size(0);) {
    const Block rows = block(query, positions, first);
    all.push_back({rows.first, rows.count, probabilities(rows).sum(at::IntArrayRef{0, 1})});
    first += rows.count;
  }
  return all;
}

at::Tensor sum_received(const std::vector<ReceivedAttention>& received, std::int64_t num_tokens) {
  at::Tensor sums = at::zeros({num_tokens}, at::kDouble);
  for (const ReceivedAttention& rows : received) {
    sums.narrow(0, 0, rows.sums.size(0)) += rows.sums.cpu();
  }
  return sums;
}

}  // namespace kvc
