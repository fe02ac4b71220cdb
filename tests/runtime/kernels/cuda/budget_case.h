// One sequence's cache under a budget, in the memory of kernels and in the CPU's.
#pragma once

#include <numeric>
#include <string>
#include <vector>

#include "runtime/kernels/quantise.h"
#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {

struct BudgetShape {
  BudgetLayout layout;
  Demotion demotion = Demotion::kPaper;
  DeviceElement element = DeviceElement::kFloat16;
  int num_heads = 4, num_kv_heads = 2, head_dim = 32, num_parts = 2, steps = 24;
  float decay = 0.98f, softcap = 0;
  bool has_scores = true;
  bool has_ties = false;  // scores so large that probabilities change none
  DeviceElement context = DeviceElement::kBFloat16;  // int8, int4: of the context

  int num_codes() const { return is_coded(context) ? num_kv_heads * layout.num_context : 0; }
};

inline std::vector<float> widened(const std::vector<std::uint16_t>& bits, DeviceElement element) {
  std::vector<float> numbers;
  for (const std::uint16_t x : bits) {
    numbers.push_back(element == DeviceElement::kBFloat16 ? to_float(BFloat16{x})
                                                          : to_float(Float16{x}));
  }
  return numbers;
}

// One sequence's cache, on both sides.
class CaseCache {
 public:
  CaseCache(KernelBackend& backend, const BudgetShape& shape, int capacity, unsigned seed)
      : backend_(backend), shape_(shape) {
    const int rows = shape.num_kv_heads * capacity, dim = shape.head_dim;
    const int slots = shape.num_kv_heads * shape.layout.num_residual;
    const int exact = rows - shape.num_codes();
    keys_ = narrowed(case_numbers(exact * dim, seed), shape.element);
    values_ = narrowed(case_numbers(exact * dim, seed + 1), shape.element);
    key_codes_ = codes_of(case_numbers(shape.num_codes() * dim, seed + 5));
    value_codes_ = codes_of(case_numbers(shape.num_codes() * dim, seed + 6));
    scores_ = case_numbers(rows, seed + 2);
    residual_keys_ = case_numbers(slots * dim + 1, seed + 3);
    residual_values_ = case_numbers(slots * dim + 1, seed + 4);
    for (float& score : scores_) {
      score = shape.has_ties ? 67108864.0f : score * score;
    }
    for (int i = 0; i < rows; ++i) {  // not in the order of rows where only they decide
      positions_.push_back(shape.has_ties ? i * 37 % capacity : i % capacity);
    }
    for (int i = 0; i <= slots; ++i) {  // some slots are free
      counts_.push_back(static_cast<float>(i % 3));
      const bool is_free = i % 3 == 0;
      for (int c = 0; c < dim && is_free && i < slots; ++c) {
        residual_keys_[static_cast<std::size_t>(i * dim + c)] = 0;
        residual_values_[static_cast<std::size_t>(i * dim + c)] = 0;
      }
    }
    before_ = merged();
    const bool ranks = shape.has_scores;
    device = {shape.layout,
              capacity,
              backend.upload(keys_),
              backend.upload(values_),
              ranks ? backend.upload(scores_) : nullptr,
              ranks ? backend.upload(positions_) : nullptr,
              backend.upload(residual_keys_),
              backend.upload(residual_values_),
              backend.upload(counts_),
              backend.upload(key_codes_),
              backend.upload(value_codes_)};
    host = {shape.layout,
            capacity,
            keys_.data(),
            values_.data(),
            ranks ? scores_.data() : nullptr,
            ranks ? positions_.data() : nullptr,
            residual_keys_.data(),
            residual_values_.data(),
            counts_.data(),
            key_codes_.data(),
            value_codes_.data()};
  }

  // `leaving`: tokens that must have been merged.
  std::string check(int leaving) const {
    const double tolerance = 2 * case_tolerance(shape_.element);
    for (const std::string& difference :
         {compare("keys", numbers(device.keys, keys_), widened(keys_, shape_.element), tolerance),
          compare("values", numbers(device.values, values_), widened(values_, shape_.element),
                  tolerance),
          compare_columns(), compare_codes(),
          compare("residual keys", backend_.download(device.residual_keys, residual_keys_.size()),
                  residual_keys_, 1e-4),
          compare("residual values",
                  backend_.download(device.residual_values, residual_values_.size()),
                  residual_values_, 1e-4),
          compare("counts", backend_.download(device.counts, counts_.size()), counts_, 0)}) {
      if (!difference.empty()) {
        return difference;
      }
    }
    const float expected = before_ + static_cast<float>(leaving * shape_.num_kv_heads);
    return shape_.layout.num_residual == 0 || merged() == expected
               ? ""
               : "residual slots stand for " + std::to_string(merged()) + " tokens, expected " +
                     std::to_string(expected);
  }

  BudgetCache device, host;

 private:
  std::vector<std::uint8_t> codes_of(const std::vector<float>& numbers) const {
    const auto row_bytes =
        static_cast<std::size_t>(code_row_bytes(shape_.context, shape_.head_dim));
    const auto rows = static_cast<std::size_t>(shape_.num_codes());
    std::vector<std::uint8_t> codes(rows * row_bytes + 4);
    for (std::size_t row = 0; row < rows; ++row) {
      quantise_rows_reference(
          {.from = numbers.data() + row * static_cast<std::size_t>(shape_.head_dim),
           .count = 1,
           .width = shape_.head_dim,
           .head_dim = shape_.head_dim,
           .element = shape_.context == DeviceElement::kInt8 ? KvElement::kInt8 : KvElement::kInt4,
           .to = codes.data() + row * row_bytes});
    }
    return codes;
  }
  // Rows that became codes are the same numbers on both sides, and so are their bytes.
  std::string compare_codes() const {
    return backend_.download(device.key_codes, key_codes_.size()) == key_codes_ &&
                   backend_.download(device.value_codes, value_codes_.size()) == value_codes_
               ? ""
               : "codes differ";
  }
  float merged() const { return std::accumulate(counts_.begin(), counts_.end() - 1, 0.0f); }
  std::vector<float> numbers(const void* from, const std::vector<std::uint16_t>& like) const {
    return widened(backend_.download(static_cast<const std::uint16_t*>(from), like.size()),
                   shape_.element);
  }
  std::string compare_columns() const {
    if (!shape_.has_scores) {
      return {};
    }
    const std::string scores =
        compare("scores", backend_.download(device.scores, scores_.size()), scores_, 0.01);
    return backend_.download(device.positions, positions_.size()) == positions_
               ? scores
               : "positions differ";
  }

  KernelBackend& backend_;
  BudgetShape shape_;
  std::vector<std::uint16_t> keys_, values_;
  std::vector<std::uint8_t> key_codes_, value_codes_;
  std::vector<float> scores_, residual_keys_, residual_values_, counts_;
  std::vector<std::int32_t> positions_;
  float before_ = 0;
};

}  // namespace kvc::testing
