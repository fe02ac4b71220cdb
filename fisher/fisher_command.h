// What the program kvfisher was asked to do.
#pragma once

#include <filesystem>
#include <vector>

#include "model/token_input.h"

namespace kvc {

struct FisherCommand {
  std::filesystem::path checkpoint{};
  std::filesystem::path out{};  // fisher.h5
  TokenInput input{};
  std::vector<std::filesystem::path> add{};  // Fisher files to be summed instead
  bool force = false;
};

// Computes or adds; UsageError when the options contradict each other.
void run_fisher(const FisherCommand& command);

}  // namespace kvc
