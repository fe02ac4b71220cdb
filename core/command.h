// The common frame of every program: shared options, one place that catches errors, exit codes.
#pragma once

#include <CLI/CLI.hpp>
#include <cstdint>
#include <functional>
#include <string>

namespace kvc {

// Options every program takes.
struct CommonOptions {
  std::string device = "auto";  // auto, cpu, cuda, cuda:N
  int threads = 0;              // 0: all
  std::uint64_t seed = 0;
  bool force = false;  // replace an existing output; continue despite refusals that name --force
  bool quiet = false;
  bool json = false;  // machine-readable result on stdout
  std::string log_level = "info";
};

// UsageError unless --device leaves the choice open or asks for the CPU: for programs that have
// nothing to compute elsewhere.
void require_cpu(const CommonOptions& common);
// Their help.
void offer_only_cpu(CLI::App& app);

// Checks of options: a number from `least` on.
CLI::Validator at_least(double least);
// Marks an option whose empty value means something; other options refuse it.
CLI::Validator may_be_empty();

// UsageError that the positional argument `name` is missing. The message names an option with a list of values that may
// have taken it.
[[noreturn]] void fail_missing(const CLI::App& app, const std::string& name);

using Action = std::function<void()>;
// Builds the CLI11 app named after argv[0] with the common options, lets `declare` add its own and
// return the action, parses, runs the action, and returns the exit code. Errors become one line on
// stderr: "kvconvert: error: ...". Usage errors (CLI11's included) give 2.
int run_command(int argc, char** argv, const std::string& description,
                const std::function<Action(CLI::App&, CommonOptions&)>& declare);

}  // namespace kvc
