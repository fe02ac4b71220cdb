// Rows of random numbers as a KV store holds them, for tests without torch.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "runtime/kernels/decode_attention.h"
#include "runtime/kernels/kv_rows.h"

namespace kvc::testing {

std::vector<float> random_numbers(std::int64_t count, unsigned seed);
std::vector<float> random_bfloat16(std::int64_t count, unsigned seed);

struct RowsShape {
  std::int64_t num_rows, width, head_dim, block_rows;
  KvElement element = KvElement::kFloat32;
  KvScales scales = KvScales::kPerRow;
};

// A store's rows in blocks of their own memory, written by the reference quantiser (num_rows is
// rounded up to whole groups of per-channel scales).
class StoredRows {
 public:
  StoredRows(const RowsShape& shape, unsigned seed);
  const KvRows& rows() const { return rows_; }
  // What is read from rows other than first .. last - 1 is not a number from now on. Not of scales per channel.
  void spoil_others(std::int64_t first, std::int64_t last);

 private:
  std::int64_t row_bytes_;
  std::vector<std::vector<std::uint8_t>> memory_;
  std::vector<const void*> blocks_;
  KvRows rows_;
};

// Angles of `num_positions` positions, theta 10000.
struct Angles {
  Angles(std::int64_t num_positions, std::int64_t num_pairs, bool interleaved, double factor = 1);
  std::vector<float> cos, sin;
  RopeAngles rope;
};

// Memory of one partial.
struct Partial {
  Partial(std::int64_t num_heads, std::int64_t head_dim);
  std::vector<float> max, sum, output;
  AttentionPartial view();
  void clear();  // of no tokens
};

// Equal softmaxes: |a - b| <= tolerance of every output divided by its sum, and of the logarithm
// of each sum.
::testing::AssertionResult partials_close(const Partial& actual, const Partial& expected,
                                          double tolerance);

// What weights in bfloat16, 2^-9 off at most, may do to an output: values and their mean, which are normal
// numbers, are less than 6 apart. 1e-5 where there are no such instructions.
double tolerance_of_values(KvElement element);

std::string to_string(KvElement element);

}  // namespace kvc::testing
