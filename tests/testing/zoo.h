// The zoo: a tiny checkpoint of every architecture with transformers' results for two prompts
// (tests/generators/make_zoo.py).
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

namespace kvc::testing {

struct ZooPrompt {
  std::vector<std::int64_t> ids;
  at::Tensor logits;                 // [ids.size(), vocab_size] float32
  std::vector<std::int64_t> tokens;  // what follows greedily
};

struct ZooCase {
  std::filesystem::path directory;
  std::vector<ZooPrompt> prompts;  // of different lengths
  bool by_length = false;  // RoPE depends on the longest sequence of a call: no batches, no chunks
};

std::filesystem::path zoo_directory();
std::vector<std::string> zoo_names();  // sorted
ZooCase load_zoo_case(const std::string& name);

}  // namespace kvc::testing
