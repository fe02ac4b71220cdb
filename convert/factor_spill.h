// Collects a conversion's factors for conversion.safetensors: each part is written to its own file
// at once, so only one part is in memory.
#pragma once

#include <ATen/ATen.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace kvc {

class FactorSpill {
 public:
  // Files appear in `directory`, an output under construction.
  explicit FactorSpill(std::filesystem::path directory) : directory_(std::move(directory)) {}

  // Tensors of one part of a plan, contiguous, under names that begin with `prefix`.
  void add(const std::string& prefix,
           const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  // The next group's.
  void add(const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  // Writes conversion.safetensors from all parts and removes their files.
  void assemble();

 private:
  std::filesystem::path directory_;
  std::vector<std::filesystem::path> files_;
  int num_groups_ = 0;
};

}  // namespace kvc
