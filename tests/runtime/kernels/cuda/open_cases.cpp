// Attention over the exact rows of open tiles against plain loops.
#include <algorithm>
#include <cmath>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/device_softmax.h"
#include "runtime/kernels/cuda/paged_tokens.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

constexpr int kHeads = 2;

std::size_t at(std::int64_t index) { return static_cast<std::size_t>(index); }

// Attention over exact rows by definition, of one query head.
struct OpenCase {
  int window, head_dim;
  float softcap;
  bool has_first;
  int exact_tiles = 1;
};
std::string open_case(const OpenCase& open, KernelBackend& backend) {
  constexpr int kQueryHeads = 6;
  const DeviceElement element = DeviceElement::kBFloat16;
  const int dim = open.head_dim;
  const std::vector<std::int32_t> tokens = {1, 32, 33, 70};
  // Where a sequence's tile lies; those before its first one have no number that is asked for.
  const auto number_of = [](std::size_t s, int tile) {
    return tile < 0 ? 99 : (2 * static_cast<int>(s) + tile) % 3;
  };
  std::vector<std::int32_t> numbers;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    for (int back = open.exact_tiles - 1; back >= 0; --back) {
      numbers.push_back(number_of(s, (tokens[s] - 1) / 32 - back));
    }
  }
  const auto numbers_of = [&](std::int64_t count, unsigned seed) {
    return case_numbers(count * dim, seed);
  };
  const auto keys = numbers_of(3 * 32 * kHeads, 1), values = numbers_of(3 * 32 * kHeads, 2);
  const auto first_keys = numbers_of(4 * kHeads, 3), first_values = numbers_of(4 * kHeads, 4);
  const auto query = numbers_of(4 * kQueryHeads, 5);
  const auto upload = [&](const std::vector<float>& rows) {
    return backend.upload(narrowed(rows, element));
  };
  AttendOpen attention{
      .span = {open.window, open.exact_tiles, open.has_first},
      .tokens = backend.upload(tokens),
      .numbers = backend.upload(numbers),
      .keys = upload(keys),
      .values = upload(values),
      .num_tiles = 3,
      .first_keys = upload(first_keys),
      .first_values = upload(first_values),
      .query = upload(query),
      .query_float16 = backend.unwritten<std::uint16_t>(query.size()),
      .element = element,
      .num_sequences = 4,
      .num_heads = kQueryHeads,
      .num_kv_heads = kHeads,
      .head_dim = dim,
      .scale = 0.2f,
      .softcap = open.softcap,
      .partials = unwritten_partials(backend, 4, open.exact_tiles, kQueryHeads, dim)};
  backend.run(attention);
  const CombinedOutput combined = combine_on(backend, {attention.partials}, 4, kQueryHeads, dim);
  const auto exact = [&](const std::vector<float>& rows) { return rounded(rows, element); };
  const auto k = exact(keys), v = exact(values), fk = exact(first_keys), fv = exact(first_values),
             q = exact(query);
  std::vector<float> output, log_sums;
  for (std::size_t s = 0; s < tokens.size(); ++s) {
    const int start = std::max(0, (tokens[s] - 1) / 32 - (open.exact_tiles - 1)) * 32;
    const int seen = open.window == 0 ? 0 : std::max(0, tokens[s] - open.window);
    for (int head = 0; head < kQueryHeads; ++head) {
      const int kv = head / (kQueryHeads / kHeads);
      const auto* from = q.data() + (at(s * kQueryHeads) + at(head)) * at(dim);
      std::vector<const float*> of_keys, of_values;
      if (open.has_first && seen == 0 && start > 0) {
        of_keys.push_back(fk.data() + (s * kHeads + at(kv)) * at(dim));
        of_values.push_back(fv.data() + (s * kHeads + at(kv)) * at(dim));
      }
      for (int i = std::max(start, seen); i < tokens[s]; ++i) {
        const std::int64_t number = number_of(s, i / 32);
        const auto row = at(((number * 32 + i % 32) * kHeads + kv) * dim);
        of_keys.push_back(k.data() + row);
        of_values.push_back(v.data() + row);
      }
      double sum = 0;
      std::vector<double> sums(at(dim));
      for (std::size_t i = 0; i < of_keys.size(); ++i) {
        double score = 0;
        for (int d = 0; d < dim; ++d) {
          score += static_cast<double>(from[d]) * of_keys[i][d];
        }
        const double weight = std::exp(
            static_cast<double>(scaled_score(static_cast<float>(score), 0.2f, open.softcap)));
        sum += weight;
        for (int d = 0; d < dim; ++d) {
          sums[at(d)] += weight * of_values[i][d];
        }
      }
      log_sums.push_back(static_cast<float>(std::log(sum)));
      for (const double value : sums) {
        output.push_back(static_cast<float>(value / sum));
      }
    }
  }
  std::string difference = compare("output", combined.output, output, 1e-4);
  if (difference.empty()) {
    difference = compare("log sum", combined.log_sum, log_sums, 1e-4);
  }
  const auto halves =
      backend.download(static_cast<std::uint16_t*>(attention.query_float16), query.size());
  return difference.empty() && halves != narrowed(q, DeviceElement::kFloat16)
             ? "the query in float16"
             : difference;
}

}  // namespace

std::vector<KernelCase> open_tile_cases() {
  std::vector<KernelCase> cases;
  for (const OpenCase& open :
       {OpenCase{0, 32, 0, true}, OpenCase{5, 64, 3, true}, OpenCase{40, 128, 0, false},
        OpenCase{0, 256, 0, true}, OpenCase{0, 64, 0, true, 2}, OpenCase{36, 128, 2, true, 3}}) {
    cases.push_back({"open_window_" + std::to_string(open.window) + "_dim_" +
                         std::to_string(open.head_dim) + "_tiles_" +
                         std::to_string(open.exact_tiles),
                     [open](KernelBackend& backend) { return open_case(open, backend); }});
  }
  return cases;
}

}  // namespace kvc::testing
