// Sums over tokens of what the layers of a run have for every token: layer by layer a row of their keys'
// width and one of their values'. Layers come one after the other, so their rows wait on disk when large.
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
  std::int64_t sink_tokens = 4;  // first tokens of a sequence, which caches keep as they are
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
  // Rows of one of the run's layers from token `first` on; key and value [count, their width], of any
  // device.
  void set(int layer, std::int64_t first, const at::Tensor& key, const at::Tensor& value);
  // Once every row of every layer is set. Summed on `device`; on the CPU.
  JointSums sums(at::Device device = at::kCPU) const;

 private:
  LayerRun run_;
  KvWidths widths_;
  at::Tensor rows_;  // [num_tokens, n] float32
};

}  // namespace kvc
