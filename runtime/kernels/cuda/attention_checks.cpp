// What attention over rows, latents and codes does not take.
#include <algorithm>
#include <iterator>
#include <string>

#include "runtime/kernels/cuda/attention_codes.h"
#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_limits.h"
#include "runtime/kernels/cuda/attention_rank.h"

namespace kvc {
namespace {

LaunchError check_rows(const DenseAttention& params, const DeviceRows& rows, const char* what) {
  const std::string name = std::string("dense attention: ") + what;
  const int width = params.num_kv_heads * params.head_dim;
  if (rows.width != width) {
    return name + " rows of " + std::to_string(rows.width) + " numbers, expected " +
           std::to_string(width);
  }
  if (rows.block_rows <= 0 || rows.block_rows % kScaledRows != 0) {
    return name + " in blocks of " + std::to_string(rows.block_rows) +
           " rows; expected a multiple of 32 (the pool's page size)";
  }
  if (needs_decoding(rows) != needs_decoding(params.rows[0].key)) {
    return name +
           ": stores of 16-bit numbers and of codes in one launch; attend to them apart and "
           "combine";
  }
  if (!needs_decoding(rows) && rows.element != params.element) {
    return name + ": bfloat16 and float16 in one launch; give the query in the store's type";
  }
  return {};
}

template <class Params>
LaunchError check_query(const Params& params, const std::string& name, int most_heads) {
  if (params.num_kv_heads <= 0 || params.num_heads % params.num_kv_heads != 0 ||
      params.num_heads / params.num_kv_heads > most_heads) {
    return name + std::to_string(params.num_heads) + " query heads on " +
           std::to_string(params.num_kv_heads) + " KV heads, expected 1 to " +
           std::to_string(most_heads) + " on each";
  }
  if (params.element != DeviceElement::kBFloat16 && params.element != DeviceElement::kFloat16) {
    return name + "the query is bfloat16 or float16";
  }
  return {};
}

}  // namespace

bool needs_decoding(const DeviceRows& rows) {
  return is_coded(rows.element) || rows.element == DeviceElement::kFloat8;
}

LaunchError check_dense_attention(const DenseAttention& params, int num_sources) {
  const std::string name = "dense attention: ";
  if (params.num_sources != num_sources) {
    return name + std::to_string(params.num_sources) + " stores, expected " +
           std::to_string(num_sources);
  }
  const int head_dim = params.head_dim;
  if (head_dim != 32 && head_dim != 64 && head_dim != 128 &&
      (head_dim != 256 || num_sources != 1)) {
    return name + "head_dim " + std::to_string(head_dim) +
           ", expected 32, 64, 128 or, of one store, 256";
  }
  const int most_heads = head_dim * num_sources <= 128 ? 16 : 8;  // what registers hold
  if (LaunchError error = check_query(params, name, most_heads); !error.empty()) {
    return error;
  }
  const DeviceRope& rope = params.raw_keys.rope;
  for (int source = 0; source < num_sources; ++source) {
    const AttendedRows& rows = params.rows[source];
    for (LaunchError error :
         {check_rows(params, rows.key, "key"), check_rows(params, rows.value, "value")}) {
      if (!error.empty()) {
        return error;
      }
    }
    if (rows.raw_key && !needs_decoding(rows.key)) {
      return name + "keys before RoPE are codes";
    }
    if (rows.raw_key && (rope.num_pairs % 4 != 0 || 2 * rope.num_pairs > head_dim)) {
      return name + std::to_string(rope.num_pairs) +
             " rotary pairs, expected a multiple of 4 up to " + std::to_string(head_dim / 2);
    }
  }
  return {};
}

namespace {

LaunchError check_latents(const RankAttention& params) {
  const DeviceRows& latents = params.latents;
  const int step = needs_decoding(latents) ? 32 : 8;
  for (const int size :
       {params.key_column, params.key_rank, params.value_column, params.value_rank}) {
    if (size % step != 0) {
      return "latent attention: rank or column " + std::to_string(size) +
             ", expected a multiple of " + std::to_string(step) +
             "; convert with --rank-multiple 32";
    }
  }
  if (latents.width % step != 0 || params.key_column + params.key_rank > latents.width ||
      params.value_column + params.value_rank > latents.width) {
    return "latent attention: columns up to " +
           std::to_string(params.value_column + params.value_rank) + " of latents of " +
           std::to_string(latents.width);
  }
  if (latents.block_rows <= 0 || latents.block_rows % kScaledRows != 0) {
    return "latent attention: blocks of " + std::to_string(latents.block_rows) +
           " rows, expected a multiple of 32";
  }
  if (!needs_decoding(latents) && latents.element != params.element) {
    return "latent attention: latents and query are of different types";
  }
  return {};
}

LaunchError check_codes(const RankAttention& params) {
  if (params.element != DeviceElement::kFloat16) {
    return "coded attention: query and projection are float16, in which codes are exact";
  }
  for (const RankCodes& codes : {params.key_codes, params.value_codes}) {
    if (codes.tiles != nullptr &&
        (codes.num_blocks <= 0 || params.num_kv_heads % codes.num_blocks != 0)) {
      return "coded attention: " + std::to_string(codes.num_blocks) + " blocks for " +
             std::to_string(params.num_kv_heads) + " KV heads";
    }
  }
  if (params.stored.pairs.num_pairs != 0) {
    return "coded attention: codes hold no keys as they are";
  }
  return {};
}

}  // namespace

LaunchError check_rank_attention(const RankAttention& params) {
  if (params.num_kv_heads <= 0 || params.num_heads % params.num_kv_heads != 0) {
    return "latent attention: " + std::to_string(params.num_heads) + " query heads on " +
           std::to_string(params.num_kv_heads) + " KV heads";
  }
  if (LaunchError error = params.reads_codes() ? check_codes(params) : check_latents(params);
      !error.empty()) {
    return error;
  }
  const int values =
      params.reads_codes() ? params.value_codes.most_coefficients : params.value_rank;
  if (params.sums_width % 32 != 0 || params.sums_width < values) {
    return "latent attention: sums of " + std::to_string(params.sums_width) + " latents for rank " +
           std::to_string(values) + ", expected that rounded up to a multiple of 32";
  }
  if (params.has_weights()) {
    return {};
  }
  if (std::find(std::begin(kRebuiltPairs), std::end(kRebuiltPairs), params.keys.pairs.num_pairs) ==
      std::end(kRebuiltPairs)) {
    return "latent attention: " + std::to_string(params.keys.pairs.num_pairs) +
           " rebuilt rotary pairs, expected 16, 24, 32, 48 or 64; pad with pairs of channel -1";
  }
  const int rank = params.reads_codes() ? params.key_codes.most_coefficients : params.key_rank;
  if (params.keys.projections != nullptr) {
    if (params.reads_codes() || needs_decoding(params.latents) ||
        params.stored.pairs.num_pairs != 0 || params.keys.rank_stride != rank ||
        params.keys.pairs.num_pairs < params.head_dim / 2) {
      return "latent attention: a sequence's own key projection has rows of the rank " +
             std::to_string(rank) + " for " + std::to_string(params.head_dim / 2) +
             " rotary pairs of latents, all of them rebuilt, not rows of " +
             std::to_string(params.keys.rank_stride);
    }
  } else if (params.keys.rank_stride % 32 != 0 || params.keys.rank_stride < rank) {
    return "latent attention: key projection of " + std::to_string(params.keys.rank_stride) +
           " columns for rank " + std::to_string(rank) +
           ", expected that rounded up to a multiple of 32";
  }
  if (params.stored.pairs.num_pairs % 8 != 0) {
    return "latent attention: " + std::to_string(params.stored.pairs.num_pairs) +
           " stored rotary pairs, expected a multiple of 8; pad with pairs of channel -1";
  }
  if (params.stored.pairs.num_pairs != 0 && params.keys.norm != nullptr) {
    return "latent attention: keys that are normalised after their bias cannot be latents (pivot "
           "gauge); "
           "convert without it";
  }
  return {};
}

LaunchError check_coded_attention(const CodedAttention& params) {
  const std::string name = "coded attention: ";
  const int head_dim = params.head_dim, most_heads = most_met_heads(head_dim);
  if (!meets_heads(head_dim)) {
    return name + "head_dim " + std::to_string(head_dim) + ", expected 32, 64, 128 or 256";
  }
  if (LaunchError error = check_query(params, name, most_heads); !error.empty()) {
    return error;
  }
  if (params.codes.count > head_dim) {
    return name + std::to_string(params.codes.count) + " coefficients of a head's keys, expected " +
           std::to_string(head_dim) + " at most";
  }
  return {};
}

}  // namespace kvc
