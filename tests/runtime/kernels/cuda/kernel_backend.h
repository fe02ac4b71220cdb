// Where the cases of tests run attention kernels: the CPU emulator (emulated_backend.h) or a GPU
// (gpu_attention_test.cpp).
#pragma once

#include "runtime/kernels/cuda/attention_combine.h"
#include "runtime/kernels/cuda/attention_dense.h"
#include "runtime/kernels/cuda/attention_fuse_rows.h"
#include "runtime/kernels/cuda/attention_rank.h"
#include "tests/runtime/kernels/cuda/kernel_memory.h"

namespace kvc::testing {

class KernelBackend : public KernelMemory {
 public:
  // Throws std::runtime_error where a launch fails.
  virtual void run(const DenseAttention& params) = 0;
  virtual void run(const CombinePartials& params) = 0;
  virtual void run(const RankAttention& params) = 0;  // all of its launches
  virtual void run(const ProjectValues& params) = 0;
  virtual void run(const FuseRows& params) = 0;
};

}  // namespace kvc::testing
