// The options of one conversion on a command line.
#pragma once

#include <CLI/CLI.hpp>
#include <string>
#include <vector>

#include "convert/pipeline.h"
#include "core/command.h"

namespace kvc {

// As given, or empty.
struct ConversionWords {
  std::string engine = "kvrun", format = "factored";
  std::vector<std::string> calibration;
};

// Declares its options on `app`, which must outlive it; stays where it is until the app has parsed.
class ConversionOptions {
 public:
  explicit ConversionOptions(CLI::App& app);
  ConversionOptions(const ConversionOptions&) = delete;
  ConversionOptions& operator=(const ConversionOptions&) = delete;

  // What a parsed app asks for, the method and what an engine prescribes included. UsageError where options contradict
  // each other.
  PipelineOptions resolve(const CommonOptions& common);

 private:
  CLI::App& app_;
  PipelineOptions options_;
  ConversionWords words_;
};

}  // namespace kvc
