#include <cmath>
#include <vector>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/prompt_attention.h"
#include "runtime/kernels/prompt_pieces.h"

namespace kvc {
namespace {

// Attention of one query token and head.
void attend_token(const PromptAttention& params, std::int64_t token, std::int64_t head) {
  const std::int64_t head_dim = params.head_dim;
  const std::int64_t kv_head = head / (params.num_heads / params.num_kv_heads);
  std::vector<float> query(static_cast<std::size_t>(head_dim)), row(query), output(query);
  load_numbers(params.query, token, head, head_dim, params.scale, query.data());
  const std::int64_t begin = params.seen_from(token), exact = params.exact_start(token);
  std::vector<float> weights;
  float largest = -INFINITY, sum = 0;
  for (std::int64_t key = begin; key <= token; ++key) {
    load_numbers(key < exact ? params.coded_key : params.exact_key, key, kv_head, head_dim, 1,
                 row.data());
    float score = 0;
    for (std::size_t d = 0; d < row.size(); ++d) {
      score += query[d] * row[d];
    }
    score = params.softcap == 0 ? score : params.softcap * std::tanh(score / params.softcap);
    weights.push_back(score);
    largest = std::max(largest, score);
  }
  for (std::int64_t key = begin; key <= token; ++key) {
    const float weight = std::exp(weights[static_cast<std::size_t>(key - begin)] - largest);
    load_numbers(key < exact ? params.coded_value : params.exact_value, key, kv_head, head_dim,
                 weight, row.data());
    sum += weight;
    for (std::size_t d = 0; d < row.size(); ++d) {
      output[d] += row[d];
    }
  }
  store_numbers(params.output, token, head, head_dim, 1 / sum, output.data());
}

}  // namespace

std::int64_t PromptAttention::exact_start(std::int64_t token) const {
  return exact_step ? exact_key.first : kvc::exact_start(token, exact_tiles, sinks);
}

std::int64_t PromptAttention::tile_end(std::int64_t token) const {
  return token < sinks ? sinks : sinks + ((token - sinks) / kTileTokens + 1) * kTileTokens;
}

std::int64_t prompt_pieces(const PromptAttention& params) {
  const TokenRows& query = params.query;
  return query.first >= query.last ? 0
                                   : params.num_kv_heads * ((query.last - 1) / kPromptBlock + 1 -
                                                            query.first / kPromptBlock);
}

void prompt_attention_reference(const PromptAttention& params, std::int64_t first,
                                std::int64_t last) {
  const std::int64_t per_kv = params.num_heads / params.num_kv_heads;
  for (std::int64_t i = first; i < last; ++i) {
    const QueryPiece piece = query_piece(params, i);
    for (std::int64_t token = piece.first; token < piece.last; ++token) {
      for (std::int64_t head = 0; head < per_kv; ++head) {
        attend_token(params, token, piece.kv_head * per_kv + head);
      }
    }
  }
}

}  // namespace kvc
