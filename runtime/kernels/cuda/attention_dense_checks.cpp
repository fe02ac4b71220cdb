#include <string>

#include "runtime/kernels/cuda/attention_dense.h"

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
  if (params.num_kv_heads <= 0 || params.num_heads % params.num_kv_heads != 0 ||
      params.num_heads / params.num_kv_heads > most_heads) {
    return name + std::to_string(params.num_heads) + " query heads on " +
           std::to_string(params.num_kv_heads) + " KV heads, expected 1 to " +
           std::to_string(most_heads) + " on each";
  }
  if (params.element != DeviceElement::kBFloat16 && params.element != DeviceElement::kFloat16) {
    return name + "the query is bfloat16 or float16";
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

}  // namespace kvc
