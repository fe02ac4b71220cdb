// What int8 weights change about a trained model.
#include <gtest/gtest.h>

#include <c10/core/InferenceMode.h>

#include <filesystem>

#include "model/decoder.h"
#include "model/int8_linear.h"
#include "tests/testing/tensor_matchers.h"

namespace kvc {
namespace {

Checkpoint reference_model() {
  return Checkpoint::open(std::filesystem::path(KVC_TEST_DATA) / "reference-llama");
}

at::Tensor logits_of(const Decoder& decoder, const std::vector<std::int64_t>& ids) {
  const c10::InferenceMode guard;
  FullAttention attention(decoder.config(), decoder.rope());
  return decoder.logits(decoder.forward(TokenBatch::of({ids}), attention));
}

std::vector<std::int64_t> continue_greedily(const Decoder& decoder, std::vector<std::int64_t> ids,
                                            int count) {
  for (int i = 0; i < count; ++i) {
    ids.push_back(logits_of(decoder, ids)[-1].argmax().item<std::int64_t>());
  }
  return ids;
}

TEST(Int8Model, TextAndDistributionsStay) {
  const Checkpoint checkpoint = reference_model();
  const Decoder exact(checkpoint, at::kFloat), int8(checkpoint, at::kFloat, {}, WeightType::kInt8);
  for (const std::vector<std::int64_t>& prompt :
       {std::vector<std::int64_t>{1, 300, 17, 45}, {1, 700, 701}, {1, 1200, 5, 99, 310}}) {
    const std::vector<std::int64_t> text = continue_greedily(exact, prompt, 32);
    EXPECT_EQ(continue_greedily(int8, prompt, 8), continue_greedily(exact, prompt, 8));
    const at::Tensor expected = logits_of(exact, text), actual = logits_of(int8, text);
    EXPECT_TRUE(testing::tensors_close(actual, expected, 0.01 * testing::spread(expected)));
    const at::Tensor log_p = expected.log_softmax(-1), log_q = actual.log_softmax(-1);
    const at::Tensor divergence = (log_p.exp() * (log_p - log_q)).sum(-1);
    EXPECT_LT(divergence.mean().item<double>(), 3e-4);
    EXPECT_LT(divergence.max().item<double>(), 3e-3);
    EXPECT_GT(expected.argmax(-1).eq(actual.argmax(-1)).to(at::kFloat).mean().item<double>(), 0.9);
  }
}

// 8.5 bits for every weight but those of norms; the embedding is tied or stays as it is.
TEST(Int8Model, CountsWhatItHolds) {
  const Checkpoint checkpoint = reference_model();
  const Decoder exact(checkpoint, at::kBFloat16);
  const Decoder int8(checkpoint, at::kBFloat16, {}, WeightType::kInt8);
  const ModelConfig& config = exact.config();
  const std::int64_t norms = (2 * config.num_layers + 1) * config.hidden_size;
  const std::int64_t apart = config.tied_embeddings ? 0 : config.vocab_size * config.hidden_size;
  const std::int64_t quantised = config.num_parameters() - norms - apart;
  EXPECT_EQ(int8.weight_bytes(), 2 * (norms + apart) + quantised / 32 * 34);
}

}  // namespace
}  // namespace kvc
