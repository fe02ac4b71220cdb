// Checkpoints with fused layers: converted, exported and run.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <string>
#include <vector>

#include "convert/convert.h"
#include "export/export.h"
#include "runtime/engine.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {

inline ConvertSettings fusedkv(const std::string& method = "fusedkv") {
  ConvertSettings settings;
  settings.method = method;
  return settings;
}

class FusedModel : public ::testing::Test {
 protected:
  void use(const SyntheticCheckpoint& model) {
    model_ = model;
    TokenSet tokens;
    tokens.sequences = random_ids(6, 40, model.vocab_size, 3);
    tokens.tokenizer_hash = std::string(64, 'a');
    tokens.source_hashes = {std::string(64, 'b')};
    std::filesystem::remove(directory_ / "tokens.h5");
    write_token_set(directory_ / "tokens.h5", tokens);
  }
  void use_random(const SyntheticCheckpoint& model) {
    use(model);
    write_synthetic_checkpoint(directory_ / "model", model);
  }

  std::filesystem::path convert_to(const std::string& name, ConvertSettings settings,
                                   const std::filesystem::path& state = {}) {
    resolve(settings);
    convert({.checkpoint = directory_ / "model",
             .tokens = directory_ / "tokens.h5",
             .calibration = {},
             .fisher = {},
             .out = directory_ / name,
             .state = state,
             .force = true},
            settings);
    return directory_ / name;
  }
  std::filesystem::path export_to(const std::string& name,
                                  const std::filesystem::path& conversion) {
    ExportOptions options;
    options.checkpoint = directory_ / "model";
    options.conversion = conversion;
    options.out = directory_ / name;
    export_checkpoint(options);
    return directory_ / name;
  }
  // For the last tokens: a prompt, then one token at a time.
  at::Tensor logits(const std::filesystem::path& directory) const {
    const Engine engine = Engine::load(directory, {});
    const auto ids = random_ids(1, 30, model_.vocab_size, 8).front();
    Sequence sequence = engine.new_sequence();
    std::vector<at::Tensor> rows =
        engine.prefill({&sequence}, {{ids.begin(), ids.begin() + 20}}, Engine::Rows::kAll);
    for (std::size_t i = 20; i < ids.size(); ++i) {
      rows.push_back(engine.extend({&sequence}, {{ids[i]}}, Engine::Rows::kAll).front());
    }
    return at::cat(rows);
  }
  TemporaryDirectory directory_;
  SyntheticCheckpoint model_;
};

}  // namespace kvc::testing
