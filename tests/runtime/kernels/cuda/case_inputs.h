// Random stores and queries of kernel cases, in the backend's memory and the CPU's.
#pragma once

#include <cstdint>
#include <deque>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/decode_attention.h"
#include "tests/runtime/kernels/cuda/kernel_backend.h"

namespace kvc::testing {

// Numbers from a normal distribution; equal seeds give equal numbers.
std::vector<float> case_numbers(std::int64_t count, unsigned seed);

// As 16-bit numbers, and what those stand for.
std::vector<std::uint16_t> narrowed(const std::vector<float>& numbers, DeviceElement element);
std::vector<float> rounded(const std::vector<float>& numbers, DeviceElement element);

struct CaseRowsShape {
  std::vector<int> num_rows;  // of each sequence
  int width = 0, head_dim = 0, block_rows = 32;
  DeviceElement element = DeviceElement::kBFloat16;
  bool per_channel = false;
};

// One store's rows of several sequences. float8 stands in float32 on the CPU.
class CaseRows {
 public:
  CaseRows(KernelBackend& backend, const CaseRowsShape& shape, unsigned seed);
  const DeviceRows& device() const { return device_; }
  const KvRows& host(std::size_t sequence) const { return host_[sequence]; }

 private:
  std::deque<std::vector<std::uint8_t>> memory_;
  std::deque<std::vector<const void*>> tables_;
  std::vector<KvRows> host_;
  DeviceRows device_;
};

// Angles of theta 10000, on both sides.
struct CaseAngles {
  CaseAngles(KernelBackend& backend, std::int64_t num_positions, int num_pairs, bool interleaved);
  std::vector<float> cos, sin;
  RopeAngles host;
  DeviceRope device;
};

// Partials of `num_parts`, unwritten.
DevicePartials unwritten_partials(KernelBackend& backend, int num_sequences, int num_parts,
                                  int num_heads, int width);

// Combines one sequence's attention: output [num_heads, width] and log_sum [num_heads] of each.
struct CombinedOutput {
  std::vector<float> output, log_sum;
};
CombinedOutput combine_on(KernelBackend& backend, const std::vector<DevicePartials>& sources,
                          int num_sequences, int num_heads, int width);

// Empty, or the worst difference beyond the tolerance, with name and index.
std::string compare(const std::string& what, const std::vector<float>& actual,
                    const std::vector<float>& expected, double tolerance);

// For outputs of order one under a query and keys of order one: rounding of the inputs' type.
double case_tolerance(DeviceElement element);

std::string element_name(DeviceElement element);

}  // namespace kvc::testing
