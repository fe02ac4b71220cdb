// Donors whose numbers follow from their first id, and what a directory holds of them.
#pragma once

#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <utility>
#include <vector>

#include "core/progress.h"
#include "runtime/reuse/donor_store.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::testing {

inline constexpr std::int64_t kLarge = std::int64_t{1} << 40;

inline DonorFormat small_format(const std::string& binding = "a") {
  return {.binding = binding,
          .num_layers = 2,
          .num_kv_heads = 2,
          .head_dim = 4,
          .hidden_size = 8,
          .vocab_size = 100};
}

// Every number of it follows from the first id.
inline DonorPrompt prompt_of(std::int64_t first_id, std::int64_t num_tokens = 20) {
  DonorPrompt prompt;
  for (std::int64_t i = 0; i < num_tokens; ++i) {
    prompt.ids.push_back((first_id + i) % 100);
  }
  const auto seed = static_cast<std::uint64_t>(first_id) * 10;
  prompt.mean_embedding = random_normal({8}, seed);
  for (std::uint64_t layer = 0; layer < 2; ++layer) {
    prompt.key.push_back(random_normal({num_tokens, 2, 4}, seed + 1 + layer));
    prompt.value.push_back(random_normal({num_tokens, 2, 4}, seed + 3 + layer));
  }
  return prompt;
}

inline ::testing::AssertionResult is_whole(const DonorPrompt& found) {
  const DonorPrompt expected = prompt_of(found.ids.at(0), found.num_tokens());
  if (found.ids != expected.ids) {
    return ::testing::AssertionFailure() << "other ids";
  }
  for (std::size_t layer = 0; layer < 2; ++layer) {
    for (const auto& [a, b] : {std::pair(found.key[layer], expected.key[layer]),
                               {found.value[layer], expected.value[layer]}}) {
      if (const auto same = tensors_identical(a, b); !same) {
        return same;
      }
    }
  }
  return ::testing::AssertionSuccess();
}

inline std::vector<std::filesystem::path> entries(const std::filesystem::path& directory) {
  std::vector<std::filesystem::path> paths;
  for (const auto& entry : std::filesystem::directory_iterator(directory)) {
    if (entry.path().extension() == ".safetensors") {
      paths.push_back(entry.path());
    }
  }
  return paths;
}

// What a look-up in a new process finds: every donor that can be opened, each of which must be whole.
inline std::vector<std::int64_t> first_ids(const std::filesystem::path& directory,
                                           const DonorFormat& format = small_format()) {
  DonorStore store(directory, format, kLarge);
  std::vector<std::int64_t> ids;
  for (const auto& candidate : store.nearest(random_normal({8}, 1), 1000)) {
    if (const auto donor = store.open(candidate.name)) {
      EXPECT_TRUE(is_whole(donor->prompt()));
      ids.push_back(donor->prompt().ids.front());
    }
  }
  std::sort(ids.begin(), ids.end());
  return ids;
}

using Ids = std::vector<std::int64_t>;

// While alive, warnings are not printed.
struct Quiet {
  Quiet() { set_log_level(LogLevel::kError); }
  ~Quiet() { set_log_level(LogLevel::kInfo); }
};

}  // namespace kvc::testing
