// Sums over tokens of the stacked rows of a run of layers: layer by layer a row of keys and one of
// values. Layers arrive one after the other, so large rows wait on disk.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>

#include "core/kv_plan.h"
#include "model/config.h"

namespace kvc {

// Which tokens and layers count.
struct JointOptions {
  int layers_per_group = 0;      // 0: nothing is summed
  std::int64_t sink_tokens = 4;  // first tokens of a sequence, which caches keep exact
};

struct JointSums {
  at::Tensor sum;            // [n] float64, n = num_layers * (key and value widths)
  at::Tensor second_moment;  // [n, n] float64
};

class JointMoment {
 public:
  JointMoment(const LayerRun& run, std::int64_t num_tokens, const KvWidths& widths,
              const std::filesystem::path& spill_directory);

  const LayerRun& run() const { return run_; }
  // Rows of one layer of the run from token `first` on; key and value [count, their width], on any
  // device.
  void set(int layer, std::int64_t first, const at::Tensor& key, const at::Tensor& value);
  // Call when every row of every layer is set. Summed on `device`, returned on the CPU.
  JointSums sums(at::Device device = at::kCPU) const;

 private:
  LayerRun run_;
  KvWidths widths_;
  at::Tensor rows_;  // [num_tokens, n] float32
};

}  // namespace kvc
