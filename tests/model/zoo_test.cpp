// The decoder against transformers' logits, for every architecture and its variants.
#include <gtest/gtest.h>

#include <set>
#include <tuple>

#include "model/decoder.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

using testing::spread;
using testing::tensors_close;
using testing::ZooCase;

constexpr double kTolerance = 1e-5;  // of the logits' spread

class Zoo : public ::testing::TestWithParam<std::string> {};

TEST_P(Zoo, LogitsEqualTransformers) {
  const ZooCase zoo_case = testing::load_zoo_case(GetParam());
  const Decoder decoder(Checkpoint::open(zoo_case.directory), at::kFloat);
  FullAttention attention(decoder.config(), decoder.rope());
  for (const testing::ZooPrompt& prompt : zoo_case.prompts) {
    const at::Tensor logits =
        decoder.logits(decoder.forward(TokenBatch::of({prompt.ids}), attention));
    EXPECT_TRUE(tensors_close(logits, prompt.logits, kTolerance * spread(prompt.logits)));
  }
}

TEST_P(Zoo, SequencesOfUnequalLengthDoNotSeeEachOther) {
  const ZooCase zoo_case = testing::load_zoo_case(GetParam());
  if (zoo_case.by_length) {
    GTEST_SKIP() << "the longer sequence decides about both in transformers";
  }
  const Decoder decoder(Checkpoint::open(zoo_case.directory), at::kFloat);
  FullAttention attention(decoder.config(), decoder.rope());
  const auto& [first, second] = std::tie(zoo_case.prompts[0], zoo_case.prompts[1]);
  const at::Tensor logits =
      decoder.logits(decoder.forward(TokenBatch::of({first.ids, second.ids}), attention));
  const at::Tensor expected = at::cat({first.logits, second.logits});
  EXPECT_TRUE(tensors_close(logits, expected, kTolerance * spread(expected)));
}

INSTANTIATE_TEST_SUITE_P(All, Zoo, ::testing::ValuesIn(testing::zoo_names()),
                         [](const auto& row) { return row.param; });

// Every row of the table has a case, so that a missing zoo fails.
TEST(ZooCoverage, EveryArchitectureHasACase) {
  std::set<std::string> covered;
  for (const std::string& name : testing::zoo_names()) {
    const Checkpoint checkpoint = Checkpoint::open_config_only(testing::zoo_directory() / name);
    covered.insert(std::string(parse_model_config(checkpoint.config(), name).arch->model_type));
  }
  for (const ArchSpec& arch : supported_archs()) {
    EXPECT_TRUE(covered.contains(std::string(arch.model_type))) << arch.model_type;
  }
}

}  // namespace
}  // namespace kvc
