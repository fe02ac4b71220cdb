// Engines that reuse the caches of prompts much like the ones they read.
#pragma once

#include <gtest/gtest.h>

#include <filesystem>
#include <memory>
#include <string>

#include "tests/runtime/engine_fixture.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {

inline EngineOptions reusing(const std::filesystem::path& donors,
                             const std::string& settings = {}) {
  EngineOptions options;
  options.reuse.donors = donors;
  parse_reuse("min-tokens=20,least-tokens=4,retention=all", options.reuse);
  parse_reuse(settings, options.reuse);
  return options;
}

inline constexpr const char* kComputeAll = "hot=1,cold=1,decay=1,min-similarity=0";

// `ids` with every tenth token another one: a prompt much like it.
inline Row paraphrase(const Row& ids, std::int64_t vocab_size, std::uint64_t seed) {
  const Row other = random_ids(1, static_cast<std::int64_t>(ids.size()), vocab_size, seed).front();
  Row changed = ids;
  for (std::size_t i = 5; i < ids.size(); i += 10) {
    changed[i] = other[i];
  }
  return changed;
}

inline at::Tensor prefill(const Engine& engine, Sequence& sequence, const Row& ids) {
  return engine.prefill({&sequence}, {ids}, Engine::Rows::kLast).front();
}

inline at::Tensor extend(const Engine& engine, Sequence& sequence, const Row& ids) {
  return engine.extend({&sequence}, {ids}, Engine::Rows::kAll).front();
}

class PromptReuseTest : public ::testing::Test {
 protected:
  const OneThread one_;
  const SyntheticCheckpoint model_;
  const Row donor_ = random_ids(1, 190, model_.vocab_size, 1).front();
  const Row target_ = paraphrase(donor_, model_.vocab_size, 2);
  const Row more_ = random_ids(1, 7, model_.vocab_size, 3).front();
  const TemporaryDirectory directory_;

  std::unique_ptr<Engine> engine(const std::string& settings = {}) const {
    return load_plain(model_, reusing(directory_ / "donors", settings));
  }

  // Keeps `donor_` for engines made from now on: an engine writes donors behind its caller's back,
  // and its end waits until they are there.
  void keep_donor() const {
    const auto storing = engine();
    Sequence sequence = storing->new_sequence();
    prefill(*storing, sequence, donor_);
  }
};

}  // namespace kvc::testing
