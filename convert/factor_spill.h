// A conversion's factors on their way to conversion.safetensors: they wait on disk, so that one part is in memory at a
// time.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "core/safetensors.h"

namespace kvc {

class FactorSpill {
 public:
  // Files appear in `directory`, an output under construction.
  explicit FactorSpill(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Tensors of one part of a plan under names that begin with `prefix`.
  void add(const std::string& prefix,
           const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  // The next group's.
  void add(const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  // Writes conversion.safetensors from all of them.
  void write();

 private:
  std::filesystem::path directory_;
  std::vector<TensorSource> sources_;
  int num_groups_ = 0;
};

}  // namespace kvc
