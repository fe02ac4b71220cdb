// The decoder against transformers' logits (tests/generators/make_model_golden.py).
#include <gtest/gtest.h>

#include <algorithm>
#include <nlohmann/json.hpp>

#include "core/json.h"
#include "model/decoder.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::read_tensor;
using testing::spread;
using testing::tensors_close;

const std::filesystem::path kData = KVC_TEST_DATA;

std::vector<std::vector<std::int64_t>> sequences_of(const at::Tensor& ids) {
  std::vector<std::vector<std::int64_t>> sequences;
  for (const at::Tensor& row : ids.unbind()) {
    const auto* first = row.const_data_ptr<std::int64_t>();
    sequences.emplace_back(first, first + row.numel());
  }
  return sequences;
}

// Logits of all tokens of all sequences, [num_tokens, vocab_size].
at::Tensor decode(const std::filesystem::path& directory, at::ScalarType dtype,
                  const std::vector<std::vector<std::int64_t>>& sequences) {
  const Decoder decoder(Checkpoint::open(directory), dtype);
  FullAttention attention(decoder.config(), decoder.rope());
  return decoder.logits(decoder.forward(TokenBatch::of(sequences), attention));
}

class GoldenCase : public ::testing::TestWithParam<const char*> {
 protected:
  std::filesystem::path directory() const { return kData / "golden" / GetParam(); }
  at::Tensor golden(const char* name) const {
    return read_tensor(directory().string() + ".safetensors", name);
  }
};

TEST_P(GoldenCase, LogitsEqualTransformers) {
  const at::Tensor expected = golden("logits").flatten(0, 1);
  const at::Tensor logits = decode(directory(), at::kFloat, sequences_of(golden("ids")));
  EXPECT_TRUE(tensors_close(logits, expected, 1e-6 * spread(expected)));
}

TEST_P(GoldenCase, Bfloat16LogitsStayClose) {
  const at::Tensor expected = golden("logits_bfloat16").flatten(0, 1);
  const at::Tensor logits = decode(directory(), at::kBFloat16, sequences_of(golden("ids")));
  EXPECT_EQ(logits.scalar_type(), at::kFloat);
  EXPECT_TRUE(tensors_close(logits, expected, 0.02 * spread(expected)));
}

TEST_P(GoldenCase, Float16LogitsStayClose) {
  const at::Tensor expected = golden("logits").flatten(0, 1);
  const at::Tensor logits = decode(directory(), at::kHalf, sequences_of(golden("ids")));
  EXPECT_TRUE(tensors_close(logits, expected, 0.005 * spread(expected)));
}

TEST_P(GoldenCase, SequencesOfUnequalLengthDoNotSeeEachOther) {
  const auto sequences = sequences_of(golden("ids"));
  const at::Tensor expected = golden("logits");
  auto uneven = sequences;
  uneven[0].resize(5);
  const at::Tensor logits = decode(directory(), at::kFloat, uneven);
  const double tolerance = 1e-6 * spread(expected);
  EXPECT_TRUE(tensors_close(logits.narrow(0, 0, 5), expected[0].narrow(0, 0, 5), tolerance));
  EXPECT_TRUE(tensors_close(logits.narrow(0, 5, 24), expected[1], tolerance));
}

INSTANTIATE_TEST_SUITE_P(Tiny, GoldenCase,
                         ::testing::Values("llama", "llama_bias_llama3", "llama_linear",
                                           "mistral_window", "qwen2", "qwen2_window", "qwen3",
                                           "qwen3_bias"),
                         [](const auto& row) { return std::string(row.param); });

class RealCheckpoint : public ::testing::TestWithParam<const char*> {};

TEST_P(RealCheckpoint, LogitsEqualTransformers) {
  const std::string file = (kData / "golden" / GetParam()).string() + ".safetensors";
  const auto sequences = sequences_of(read_tensor(file, "ids"));
  const at::Tensor rows = read_tensor(file, "rows");
  const auto selected = [&](at::ScalarType dtype) {
    return decode(kData / GetParam(), dtype, sequences).index_select(0, rows);
  };
  const at::Tensor expected = read_tensor(file, "logits");
  EXPECT_TRUE(tensors_close(selected(at::kFloat), expected, 1e-6 * spread(expected)));
  EXPECT_TRUE(tensors_close(selected(at::kBFloat16), read_tensor(file, "logits_bfloat16"),
                            0.02 * spread(expected)));
}

INSTANTIATE_TEST_SUITE_P(Real, RealCheckpoint,
                         ::testing::Values("reference-llama", "reference-llama-128",
                                           "stories260K-hf"),
                         [](const auto& row) {
                           std::string name = row.param;
                           std::ranges::replace(name, '-', '_');
                           return name;
                         });

TEST(Stories, GreedyContinuesAsTheOriginalProgramDid) {
  constexpr std::size_t kNumTokens = 32;
  const Json golden = read_json(kData / "stories260K-hf" / "golden_ids.json");
  const auto expected = golden["greedy_ids"].get<std::vector<std::int64_t>>();
  const Decoder decoder(Checkpoint::open(kData / "stories260K-hf"), at::kFloat);
  FullAttention attention(decoder.config(), decoder.rope());
  auto ids = golden["prompt_ids"].get<std::vector<std::int64_t>>();
  for (std::size_t step = 0; step < kNumTokens; ++step) {
    const at::Tensor hidden_states = decoder.forward(TokenBatch::of({ids}), attention);
    ids.push_back(decoder.logits(hidden_states[-1]).argmax().item<std::int64_t>());
    ASSERT_EQ(ids.back(), expected[step]) << "step " << step;
  }
}

}  // namespace
}  // namespace kvc
