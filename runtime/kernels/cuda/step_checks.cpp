// What the kernels of a decoding step do not take.
#include <string>

#include "runtime/kernels/cuda/append_rows.h"
#include "runtime/kernels/cuda/budget_step.h"
#include "runtime/kernels/cuda/few_rows_product.h"

namespace kvc {
namespace {

bool is_16_bit(DeviceElement element) {
  return element == DeviceElement::kBFloat16 || element == DeviceElement::kFloat16;
}

}  // namespace

LaunchError check_few_rows_product(const FewRowsProduct& params) {
  const std::string name = "few_rows_product: ";
  if (params.num_rows < 1 || params.num_rows > kMostFewRows) {
    return name + std::to_string(params.num_rows) + " rows, expected 1 to " +
           std::to_string(kMostFewRows);
  }
  if (params.in < 8 || params.in % 8 != 0) {
    return name + std::to_string(params.in) + " columns, expected a multiple of 8";
  }
  if (!is_16_bit(params.element)) {
    return name + "the rows are bfloat16 or float16";
  }
  return {};
}

LaunchError check_append_rows(const AppendRows& params) {
  const std::string name = "append_rows: ";
  if (params.head_dim % kScaledChannels != 0 || 2 * params.rope.num_pairs > params.head_dim) {
    return name + "heads of " + std::to_string(params.head_dim) + " channels with " +
           std::to_string(params.rope.num_pairs) + " rotary pairs, expected a multiple of 32";
  }
  if (!is_16_bit(params.element)) {
    return name + "queries, keys and values are bfloat16 or float16";
  }
  if (params.num_kv_heads > 0 &&
      (params.key.element != params.element || params.value.element != params.element)) {
    return name + "the store holds other numbers than the query's";
  }
  return {};
}

LaunchError check_budget_step(const BudgetStep& params) {
  const std::string name = "budget_step: ";
  const int dim = params.head_dim;
  if (dim != 32 && dim != 64 && dim != 128 && dim != 256) {
    return name + "head_dim " + std::to_string(dim) + ", expected 32, 64, 128 or 256";
  }
  if (params.num_kv_heads < 1 || params.num_heads % params.num_kv_heads != 0) {
    return name + std::to_string(params.num_heads) + " query heads, " +
           std::to_string(params.num_kv_heads) + " KV heads, expected a multiple of them";
  }
  if (!is_16_bit(params.element)) {
    return name + "queries, keys and values are bfloat16 or float16";
  }
  if (params.context == DeviceElement::kFloat8) {
    return name + "the context's rows are as the others, int8 or int4";
  }
  if (params.partials.num_parts < 1) {
    return name + "rows in no parts, expected 1 or more";
  }
  if (params.partials.num_parts > 1 && params.arrived == nullptr) {
    return name + "rows in " + std::to_string(params.partials.num_parts) +
           " parts and nothing to count them in; expected `arrived`, or one part";
  }
  if (params.partials.num_parts > 1 && params.products_stride > 0 && params.lowest == nullptr) {
    return name + "rows in " + std::to_string(params.partials.num_parts) +
           " parts and no memory for the lowest scores of each; expected `lowest`, or one part";
  }
  return {};
}

}  // namespace kvc
