// Coded conversions of a small model, with statistics as the programs write them.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "calibrate/covariance.h"
#include "convert/coded/coded_settings.h"
#include "convert/convert.h"
#include "convert/plan.h"
#include "core/checkpoint.h"
#include "core/conversion_file.h"
#include "fisher/metric.h"
#include "model/config.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {

class CodedConversion : public ::testing::Test {
 protected:
  void write_model(const SyntheticCheckpoint& options, std::int64_t num_sequences = 24) {
    write_synthetic_checkpoint(directory_ / "model", options);
    checkpoint_ = std::make_unique<Checkpoint>(Checkpoint::open(directory_ / "model"));
    config_ = std::make_unique<ModelConfig>(read_config());
    tokens_.sequences = random_ids(num_sequences, 96, options.vocab_size, 3);
    tokens_.tokenizer_hash = std::string(64, 'a');
    tokens_.source_hashes = {std::string(64, 'b')};
    write_token_set(directory_ / "tokens.h5", tokens_);
    for (const int layers : {1, 4}) {
      const JointOptions joint{layers, 4};
      covariance(*checkpoint_, tokens_, {joint, true}, statistics("covariance", layers), false);
      metric(*checkpoint_, tokens_, {joint, 0}, statistics("metric", layers), false);
    }
  }
  ModelConfig read_config() const {
    return parse_model_config(checkpoint_->config(), "config.json");
  }
  std::filesystem::path statistics(const char* kind, int layers) const {
    return directory_ / fmt::format("{}-{}.h5", kind, layers);
  }

  static ConvertSettings settings(double kept_ratio, const std::string& scope) {
    ConvertSettings settings;
    settings.method = "coded";
    settings.kept_ratio = kept_ratio;
    settings.own<CodedSettings>().scope = scope;
    settings.window_tokens = 16;
    settings.context = 2048;
    return settings;
  }
  std::filesystem::path convert_to(const std::string& name, ConvertSettings settings) {
    resolve(settings);
    const int layers = statistics_needs(*config_, settings).joint_layers;
    convert({.checkpoint = directory_ / "model",
             .tokens = directory_ / "tokens.h5",
             .calibration = {},
             .fisher = {},
             .covariance = statistics("covariance", layers),
             .metric = statistics("metric", layers),
             .out = directory_ / name,
             .force = false},
            settings);
    return directory_ / name;
  }
  static at::Tensor factor(const std::filesystem::path& conversion, std::size_t block,
                           const char* name) {
    return read_tensor(conversion / "conversion.safetensors",
                       fmt::format("kvconvert.coded.{}.{}", block, name));
  }

  TemporaryDirectory directory_;
  std::unique_ptr<Checkpoint> checkpoint_;
  std::unique_ptr<ModelConfig> config_;
  TokenSet tokens_;
};

inline double total_error(const Conversion& conversion, double CodedReport::*error) {
  double sum = 0;
  for (const CodedReport& block : conversion.coded) {
    sum += block.*error;
  }
  return sum;
}

}  // namespace kvc::testing
