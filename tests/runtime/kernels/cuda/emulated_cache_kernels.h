// Kernels of caches through the CPU emulator, in CPU memory.
#pragma once

#include "tests/runtime/kernels/cuda/cache_kernels.h"
#include "tests/runtime/kernels/cuda/emulated_thread.h"

namespace kvc::testing {

class EmulatedCacheKernels : public CacheKernels {
 public:
  explicit EmulatedCacheKernels(ThreadOrder order) : order_(order) {}

  void run(const QuantiseRows& params) override;
  void run(const DequantiseRows& params) override;
  void encode(const CodeTilesParams& params) override;
  void decode(const CodeTilesParams& params) override;
  void run(const ProjectRows& params) override;
  void run(const NearestRows& params) override;
  void run(const LostRows& params) override;
  void run(const RowCosines& params) override;
  void run(const GatherRows& params) override;
  void run(const BudgetStep& params) override;

 private:
  ThreadOrder order_;
};

}  // namespace kvc::testing
