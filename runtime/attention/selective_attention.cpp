#include "runtime/attention/selective_attention.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>
#include <numeric>
#include <utility>

#include "model/parallel.h"
#include "runtime/attention/decode.h"
#include "runtime/attention/plain_attention.h"
#include "runtime/attention/rank_space.h"
#include "runtime/compression/group_view.h"
#include "runtime/kernels/decode_attention.h"

namespace kvc {
namespace {

// For every KV head. [num_kv_heads, outliers] int32
at::Tensor outliers_of(const ChunkLayer& chunks) {
  return chunks.outlier_chunks.rows(at::kInt).t().contiguous();
}

// What a query's heads score with every landmark. [chunks, num_heads] float32
at::Tensor landmark_scores(const ChunkLayer& chunks, const at::Tensor& query,
                           std::int64_t num_kv_heads, const AttentionRule& rule) {
  const DecodeQuery one(query, num_kv_heads, rule, {});
  const std::int64_t count = chunks.landmarks.num_rows();
  const at::Tensor scores = at::empty({count, query.size(0)}, at::kFloat);
  const KvSegment landmarks{.key = chunks.landmarks.table()};
  const std::int64_t numbers = num_kv_heads * query.size(1);
  auto* to = scores.mutable_data_ptr<float>();
  parallel_pieces(count, std::max<std::int64_t>(1, kNumbersPerThread / numbers),
                  [&](std::int64_t begin, std::int64_t end) {
                    key_scores(one.params, landmarks, begin, end, to);
                  });
  return scores;
}

// The logarithm of every chunk's share, the largest of a KV head's query heads. [num_kv_heads, chunks]
at::Tensor chunk_scores(const at::Tensor& scores, const at::Tensor& outliers) {
  const std::int64_t heads = outliers.size(0), count = scores.size(0);
  const std::int64_t num_heads = scores.size(1), heads_per_kv = num_heads / heads;
  const auto* chunk = outliers.const_data_ptr<std::int32_t>();
  auto* of_heads = scores.mutable_data_ptr<float>();
  for (std::int64_t i = 0; i < outliers.numel(); ++i) {
    std::fill_n(of_heads + chunk[i] * num_heads + i / outliers.size(1) * heads_per_kv, heads_per_kv,
                -std::numeric_limits<float>::infinity());
  }
  return (scores - at::logsumexp(scores, 0)).view({count, heads, -1}).amax(2).t().contiguous();
}

// All chunks but the outliers, ascending as these are.
std::vector<std::int64_t> without(const at::Tensor& outliers, std::int64_t count) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(count)), left;
  std::iota(all.begin(), all.end(), 0);
  const auto* first = outliers.const_data_ptr<std::int32_t>();
  std::set_difference(all.begin(), all.end(), first, first + outliers.size(0),
                      std::back_inserter(left));
  return left;
}

void keep_best(const float* scores, std::int64_t count, std::vector<std::int64_t>& chunks) {
  const auto is_better = [scores](std::int64_t a, std::int64_t b) {
    return scores[a] != scores[b] ? scores[a] > scores[b] : a < b;
  };
  std::nth_element(chunks.begin(), chunks.begin() + count, chunks.end(), is_better);
  chunks.resize(static_cast<std::size_t>(count));
  std::sort(chunks.begin(), chunks.end());
}

// Rows first .. last - 1 of the chunks, neighbours together.
std::vector<RowRun> runs_of(const std::vector<std::int64_t>& chunks, std::int64_t chunk_tokens,
                            std::int64_t first, std::int64_t last) {
  std::vector<RowRun> runs;
  for (const std::int64_t chunk : chunks) {
    const std::int64_t begin = std::max(first, chunk * chunk_tokens);
    const std::int64_t end = std::min(last, (chunk + 1) * chunk_tokens);
    if (begin >= end) {
      continue;
    }
    if (!runs.empty() && runs.back().first + runs.back().count == begin) {
      runs.back().count += end - begin;
    } else {
      runs.push_back({begin, end - begin});
    }
  }
  return runs;
}

at::Tensor positions_of(const PositionList& positions, const std::vector<RowRun>& runs) {
  std::vector<std::int32_t> list;
  for (const RowRun& run : runs) {
    for (std::int64_t row = run.first; row < run.first + run.count; ++row) {
      list.push_back(static_cast<std::int32_t>(positions[row]));
    }
  }
  return at::tensor(list, at::kInt);
}

// What every KV head sees of the part. [num_kv_heads]
std::vector<ChosenLatents> chosen_of(const MergedLatents& part, const ChunkLists& chosen,
                                     std::int64_t chunk_tokens, const LatentStore& store) {
  std::vector<ChosenLatents> of_heads;
  for (std::size_t head = 0; head < chosen.size(); ++head) {
    std::vector<RowRun> runs = runs_of(chosen[head], chunk_tokens, part.first, part.last);
    at::Tensor positions = positions_of(store.merged_positions(), runs);
    of_heads.push_back({store.merged(), std::move(positions), part.layer, std::move(runs),
                        static_cast<std::int64_t>(head)});
  }
  return of_heads;
}

// A head that sees nothing adds nothing.
PartialAttention of_no_tokens(const at::Tensor& query) {
  return {at::zeros(query.sizes(), at::kFloat),
          at::full({query.size(0)}, -std::numeric_limits<float>::infinity(), at::kFloat)};
}

// All KV heads, some of which may see nothing; tokens are at positions below num_positions.
PartialAttention attend_heads(const GroupLayer& layer, const at::Tensor& query,
                              const std::vector<ChosenLatents>& of_heads,
                              std::int64_t num_positions) {
  const Decoder& decoder = layer.group.decoder;
  const auto num_kv_heads = static_cast<std::int64_t>(of_heads.size());
  const at::Tensor queries = query.unflatten(0, {num_kv_heads, -1});
  std::vector<at::Tensor> outputs(of_heads.size()), log_sums(of_heads.size());
  // The table of angles grows here, and not under several threads.
  decoder.rope().rows_of_positions(layer.layer(), num_positions);
  // Fewer heads than threads come one after the other, each on all threads.
  const std::int64_t grain = num_kv_heads < at::get_num_threads() ? num_kv_heads : 1;
  parallel_pieces(num_kv_heads, grain, [&](std::int64_t begin, std::int64_t end) {
    for (std::int64_t head = begin; head < end; ++head) {
      const auto i = static_cast<std::size_t>(head);
      const at::Tensor own = queries[head];
      const PartialAttention part =
          of_heads[i].runs.empty()
              ? of_no_tokens(own)
              : rank_space_attention(decoder, layer.layer(), layer.group.factors, own, of_heads[i]);
      outputs[i] = part.output;
      log_sums[i] = part.log_sum;
    }
  });
  return {at::cat(outputs), at::cat(log_sums)};
}

}  // namespace

bool rebuilds_all(const SelectiveReconstruction& selective, const GroupTokens& tokens) {
  return tokens.outliers == 0 && selective.num_chunks(tokens.merged) <= selective.chunks;
}

ChunkLists choose_chunks(const SelectiveReconstruction& selective, const ChunkLayer& chunks,
                         const at::Tensor& query, const AttentionRule& rule, std::int64_t latents) {
  const at::Tensor outliers = outliers_of(chunks);
  const std::int64_t count = selective.num_chunks(latents);
  at::Tensor scores;
  if (count - outliers.size(1) > selective.chunks) {
    scores = chunk_scores(landmark_scores(chunks, query, outliers.size(0), rule), outliers);
  }
  ChunkLists lists;
  for (std::int64_t head = 0; head < outliers.size(0); ++head) {
    lists.push_back(without(outliers[head], count));
    if (scores.defined()) {
      keep_best(scores[head].const_data_ptr<float>(), selective.chunks, lists.back());
    }
  }
  return lists;
}

std::vector<PartialAttention> attend_chosen(const GroupLayer& layer, const at::Tensor& query) {
  const Decoder& decoder = layer.group.decoder;
  const LatentStore& store = layer.group.store;
  const SelectiveReconstruction& selective = *layer.group.plan.selective;
  const std::int64_t latents = store.merged().num_rows();
  const ChunkLists chosen = choose_chunks(selective, store.chunks(layer.index), query,
                                          attention_rule(decoder.config(), layer.layer()), latents);
  std::vector<PartialAttention> parts;
  std::int64_t rebuilt = 0;
  for (const MergedLatents& part :
       merged_latents(layer.group.factors, store, layer.index, decoder.dtype())) {
    const std::vector<ChosenLatents> of_heads =
        chosen_of(part, chosen, selective.chunk_tokens, store);
    std::int64_t rows = 0;
    for (const ChosenLatents& head : of_heads) {
      rows += head.positions.size(0);
    }
    if (rows > 0) {
      parts.push_back(
          attend_heads(layer, query, of_heads, store.merged_positions()[latents - 1] + 1));
    }
    rebuilt += rows;
  }
  if (layer.rebuilt != nullptr) {
    *layer.rebuilt +=
        {.rebuilt = rebuilt, .latents = latents * static_cast<std::int64_t>(chosen.size())};
  }
  return parts;
}

}  // namespace kvc
