// Thousands of seeded mutations of valid inputs: a reader returns or throws kvc::Error, nothing
// else. Meant to run under the sanitizers of the asan preset too.
#include <gtest/gtest.h>

#include <array>
#include <random>

#include "core/checkpoint.h"
#include "core/error.h"
#include "core/json.h"
#include "core/kv_plan_bytes.h"
#include "core/kv_plan_json.h"
#include "core/safetensors.h"
#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

// Pieces that break parsers more often than random bytes do.
constexpr std::array<std::string_view, 24> kPieces = {"\"",
                                                      "{",
                                                      "}",
                                                      "[",
                                                      "]",
                                                      ",",
                                                      ":",
                                                      "\\u0000",
                                                      "\\ud800",
                                                      "-1",
                                                      "1e0",
                                                      "18446744073709551615",
                                                      "9223372036854775808",
                                                      "1099511627776",
                                                      "null",
                                                      "true",
                                                      "F4",
                                                      "BF16",
                                                      "__metadata__",
                                                      "NaN",
                                                      "\xff",
                                                      "\xEF\xBB\xBF",
                                                      "../",
                                                      "data_offsets"};

std::size_t below(std::mt19937_64& random, std::size_t bound) { return random() % bound; }

void mutate_once(std::string& text, std::mt19937_64& random) {
  const std::size_t at = below(random, text.size() + 1);
  const std::size_t count = std::min(below(random, 12), text.size() - at);
  switch (below(random, 6)) {
    case 0:
      if (at < text.size()) {
        text[at] = static_cast<char>(random());
      }
      break;
    case 1:
      text.erase(at, count);
      break;
    case 2:
      text.insert(at, kPieces[below(random, kPieces.size())]);
      break;
    case 3:
      text.insert(at, std::string(text, at, count));
      break;
    case 4:
      text.replace(at, count, kPieces[below(random, kPieces.size())]);
      break;
    default:
      text.resize(at);
  }
}

// Calls `read` with `rounds` mutants of `seed`; returns how many it accepted.
int survive(const std::string& seed, int rounds,
            const std::function<void(const std::string&)>& read) {
  std::mt19937_64 random(20);  // NOLINT: the same mutants in every run
  int accepted = 0;
  for (int round = 0; round < rounds; ++round) {
    std::string mutant = seed;
    for (std::size_t i = 0; i <= below(random, 4); ++i) {
      mutate_once(mutant, random);
    }
    try {
      read(mutant);
      ++accepted;
    } catch (const Error&) {
    }
  }
  return accepted;
}

// Reads every byte of every tensor that the header admits.
unsigned touch(const std::string& bytes) {
  unsigned sum = 0;
  const auto tensors =
      SafetensorsFile::parse_header(std::as_bytes(std::span(bytes)), bytes.size(), "mutant");
  std::size_t data_bytes = 0;
  for (const TensorInfo& tensor : tensors) {
    data_bytes += tensor.num_bytes();
  }
  EXPECT_LE(data_bytes, bytes.size());
  for (const TensorInfo& tensor : tensors) {
    for (std::uint64_t i = tensor.begin; i < tensor.end; ++i) {
      sum += static_cast<unsigned char>(bytes.at(bytes.size() - data_bytes + i));
    }
  }
  return sum;
}

const std::string kHeader =
    R"({"__metadata__":{"format":"pt"},"model.norm.weight":{"dtype":"F32","shape":[2],)"
    R"("data_offsets":[0,8]},"a":{"dtype":"BF16","shape":[2,2],"data_offsets":[8,16]},)"
    R"("e":{"dtype":"U8","shape":[0,7],"data_offsets":[16,16]}})";

TEST(Mutation, SafetensorsFile) {
  const std::string seed = safetensors_bytes(kHeader, 16);
  const int accepted = survive(seed, 8000, [](const std::string& bytes) { touch(bytes); });
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 4000);
}

// The length word stays right, so that all mutants reach the JSON reader.
TEST(Mutation, SafetensorsHeader) {
  const int accepted = survive(
      kHeader, 8000, [](const std::string& header) { touch(safetensors_bytes(header, 16)); });
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 4000);
}

TEST(Mutation, Json) {
  const std::string seed =
      contents(std::filesystem::path(KVC_TEST_DATA) / "reference-llama/config.json");
  const int accepted = survive(seed, 8000, [](const std::string& text) {
    const std::string dumped = dump_json(parse_json(text, "mutant"));
    EXPECT_EQ(dump_json(parse_json(dumped, "dumped")), dumped);
  });
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 8000);
}

TEST(Mutation, KvPlan) {
  KvPlan plan = plain_plan(3, 2, 4);
  plan.layers = {KvSource::kLatent, KvSource::kLatent, KvSource::kPlain};
  plan.groups = {{.first_layer = 0, .num_layers = 2, .rank = 10, .merge_weights = {0.5, 0.5}}};
  plan.compression.rule = MergeRule::kMean;
  const int accepted = survive(dump_json(to_json(plan)), 8000, [](const std::string& text) {
    const KvPlan read = kv_plan_from_json(parse_json(text, "mutant"), "mutant");
    const std::vector<GroupTokens> tokens(read.groups.size(), GroupTokens{3, 2, 1});
    EXPECT_GT(plan_bytes(read, 6, tokens, KvDtype::kFloat32, 16), 0);
  });
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 8000);
}

class MutationFiles : public FilesTest {};

TEST_F(MutationFiles, CheckpointIndex) {
  put(file("config.json"), "{}");
  put(file("one.safetensors"), zeros_file({"a", "c"}));
  put(file("two.safetensors"), zeros_file({"b"}));
  const std::string seed = R"({"metadata":{"total_size":12},"weight_map":{"a":"one.safetensors",)"
                           R"("b":"two.safetensors","c":"one.safetensors"}})";
  const int accepted = survive(seed, 500, [&](const std::string& text) {
    put(file("model.safetensors.index.json"), text);
    EXPECT_EQ(Checkpoint::open(directory()).hash().size(), 64u);
  });
  EXPECT_GT(accepted, 0);
  EXPECT_LT(accepted, 500);
}

}  // namespace
}  // namespace kvc
