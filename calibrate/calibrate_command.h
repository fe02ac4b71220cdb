// What the program kvcalibrate was asked to do.
#pragma once

#include <filesystem>
#include <vector>

#include "model/token_input.h"

namespace kvc {

struct CalibrateCommand {
  std::filesystem::path checkpoint{};
  std::filesystem::path out{};  // calibration.h5
  TokenInput input{};
  std::vector<std::filesystem::path> add{};  // calibration files to be summed instead
  bool force = false;
};

// Calibrates or adds; UsageError when the options contradict each other.
void run_calibrate(const CalibrateCommand& command);

}  // namespace kvc
