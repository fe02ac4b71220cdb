// Readers of calibration.h5 and fisher.h5 for the stages that use them (the layouts are documented where
// they are written: calibrate/calibrate.h, fisher/fisher.h). Values in float64.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvc {

struct FisherInformation {
  std::vector<double> channel;  // [num_layers, 2, kv_dim], mean over sequences; 0 = key, 1 = value
  std::vector<double> score;    // [num_layers], k_proj plus v_proj
};
// Error when `file` belongs to another checkpoint.
FisherInformation read_fisher(const std::filesystem::path& file, const std::string& checkpoint_hash,
                              int num_layers, std::int64_t kv_dim);

// sum x x^T of one layer's projection input, and the number of tokens summed.
struct GramSum {
  std::vector<double> gram;  // [hidden_size, hidden_size]
  std::int64_t num_tokens = 0;
};
GramSum read_gram(const std::filesystem::path& calibration, const std::string& checkpoint_hash,
                  int layer, std::int64_t hidden_size);

}  // namespace kvc
