// Kernels that change caches, on whatever runs them, and the cases that they must pass: the same through the CPU
// emulator (emulated_cache_kernels.h) and on a GPU. No GoogleTest, as in kernel_cases.h.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/budget_step.h"
#include "runtime/kernels/cuda/code_tiles_device.h"
#include "runtime/kernels/cuda/gather_rows.h"
#include "runtime/kernels/cuda/merge_scores.h"
#include "runtime/kernels/cuda/nearest_rows.h"
#include "runtime/kernels/cuda/project_rows.h"
#include "runtime/kernels/cuda/quantise_rows.h"
#include "tests/runtime/kernels/cuda/kernel_memory.h"

namespace kvc::testing {

// Each throws std::runtime_error where a launch fails.
class CacheKernels {
 public:
  virtual ~CacheKernels() = default;
  virtual void run(const QuantiseRows& params) = 0;
  virtual void run(const DequantiseRows& params) = 0;
  virtual void encode(const CodeTilesParams& params) = 0;
  virtual void decode(const CodeTilesParams& params) = 0;
  virtual void run(const ProjectRows& params) = 0;
  virtual void run(const NearestRows& params) = 0;
  virtual void run(const LostRows& params) = 0;
  virtual void run(const RowCosines& params) = 0;
  virtual void run(const GatherRows& params) = 0;
  virtual void run(const BudgetStep& params) = 0;
};

struct CacheCase {
  std::string name;  // letters, digits and _
  // Empty, or what differs and by how much.
  std::function<std::string(KernelMemory&, CacheKernels&)> run;
};

std::vector<CacheCase> code_cases();     // integer codes and tiles of codes
std::vector<CacheCase> product_cases();  // projections, nearest rows, scores, chosen rows
std::vector<CacheCase> budget_cases();   // steps under a budget
// Of steps whose rows are in several parts: the same bits in whatever order these are attended to.
std::vector<std::uint16_t> budget_outputs(KernelMemory& memory, CacheKernels& kernels);

}  // namespace kvc::testing
