// A conversion's factors on their way to conversion.safetensors: each group's go to a file of their
// own as soon as they are known, so that one group is in memory at a time.
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

  // The next group's tensors, contiguous float32.
  void add(const std::vector<std::pair<std::string, at::Tensor>>& tensors);
  // Writes conversion.safetensors from all of them and removes their files.
  void assemble();

 private:
  std::filesystem::path directory_;
  std::vector<std::filesystem::path> files_;
};

}  // namespace kvc
