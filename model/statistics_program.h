// The frame of programs that compute a file of sums from a checkpoint and calibration text: their
// options, which of them exclude each other, and their two actions.
#pragma once

#include <filesystem>
#include <functional>
#include <string>
#include <vector>

#include "core/checkpoint.h"
#include "core/command.h"
#include "core/json.h"
#include "core/token_set.h"
#include "model/compute_place.h"

namespace kvc {

struct StatisticsProgram {
  std::string description;  // for --help
  std::string artifact;     // "calibration.h5"
  std::function<void(const Checkpoint&, const TokenSet&, const std::filesystem::path& out,
                     bool force, const ComputePlace& place)>
      compute;
  // Sums files of earlier runs on the same checkpoint.
  std::function<void(const std::vector<std::filesystem::path>& files,
                     const std::filesystem::path& out, bool force)>
      add;
  std::function<Json(const std::filesystem::path&)> summary;  // printed by --json
  // Whether the given options also work for models that cache latents (MLA). Empty: they do not.
  std::function<bool()> takes_own_latents{};
  // Adds the program's own options, or empty. Both arguments outlive the run.
  std::function<void(CLI::App&, const CommonOptions&)> declare{};
  // Files and directories that its own options name, which are read. Empty: none.
  std::function<std::vector<std::filesystem::path>()> inputs{};
  // UsageError for options that do not go together, before anything is read. Empty: all do.
  std::function<void(const CommonOptions&)> check{};
};

// main() of such a program; the exit code.
int run_statistics_program(int argc, char** argv, const StatisticsProgram& program);

}  // namespace kvc
