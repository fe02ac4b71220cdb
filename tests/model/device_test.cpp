// Layers on another device than the CPU: the meta device runs every operator's checks without numbers, so that a
// tensor that was left behind shows without a GPU.
#include <c10/core/GradMode.h>
#include <gtest/gtest.h>

#include <cctype>

#include "core/error.h"
#include "model/compute_place.h"
#include "model/decoder.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

// Turns what attention turns; LibTorch has no softmax and no masks without numbers.
class RotatingAttention : public Attention {
 public:
  RotatingAttention(const ModelConfig& config, const RopeTables& rope)
      : config_(config), rope_(rope) {}
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    const at::Tensor query = rotate_query(config_, rope_, layer, input.query, batch);
    if (config_.mla) {
      const at::Tensor key = rotate_tokens(rope_, layer, input.rotary_key, batch);
      return expand_latents(*config_.mla, input.weights.mla, input.latent, key).value.flatten(1);
    }
    const at::Tensor key =
        finish_key(input.weights, rope_, layer, input.key, batch.positions, batch.lengths.front());
    const at::Tensor unturned = rope_.unrotate(layer, key, batch.positions);
    EXPECT_TRUE(key.is_meta() && unturned.is_meta() && input.value.is_meta());
    return query.flatten(1);
  }

 private:
  const ModelConfig& config_;
  const RopeTables& rope_;
};

class DeviceZoo : public ::testing::TestWithParam<std::string> {};

TEST_P(DeviceZoo, LayersRunWhereTheirWeightsAre) {
  const testing::ZooCase zoo_case = testing::load_zoo_case(GetParam());
  const Checkpoint checkpoint = Checkpoint::open(zoo_case.directory);
  const ModelConfig config = read_model_config(checkpoint);
  if (config.arch->norm == NormKind::kLayer) {
    GTEST_SKIP() << "LibTorch's layer norm needs numbers";
  }
  const RopeTables rope(config, at::kFloat);
  RotatingAttention attention(config, rope);
  const TokenBatch batch = TokenBatch::of({zoo_case.prompts[0].ids, zoo_case.prompts[1].ids});
  at::Tensor hidden =
      at::empty({batch.ids.size(0), config.hidden_size}, at::TensorOptions(at::kMeta));
  for (int layer = 0; layer < config.num_layers; ++layer) {
    if (config.layer(layer).experts) {
      continue;  // their tokens are counted on the host, which needs numbers
    }
    const LayerWeights weights =
        to_device(load_layer(checkpoint, config, layer, at::kFloat), at::kMeta);
    hidden = run_layer(config, weights, layer, hidden, batch, attention);
    ASSERT_TRUE(hidden.is_meta()) << "layer " << layer;
  }
  const ModelWeights weights =
      to_device(load_model_weights(checkpoint, config, at::kFloat), at::kMeta);
  EXPECT_TRUE(compute_logits(config, weights, hidden).is_meta());
}

std::string name_of(const ::testing::TestParamInfo<std::string>& info) {
  std::string name = info.param;
  for (char& letter : name) {
    letter = std::isalnum(static_cast<unsigned char>(letter)) ? letter : '_';
  }
  return name;
}

INSTANTIATE_TEST_SUITE_P(All, DeviceZoo, ::testing::ValuesIn(testing::zoo_names()), name_of);

TEST(ComputeDevice, KnowsWhatTheBuildHas) {
  EXPECT_EQ(compute_device("cpu"), at::Device(at::kCPU));
  EXPECT_EQ(compute_device("auto"), at::Device(at::kCPU));
  EXPECT_EQ(statistics_place("cpu").dtype, at::kFloat);
  for (const char* word : {"tpu", "cuda:x", "cuda:", "cuda:12345"}) {
    EXPECT_THROW(compute_device(word), UsageError) << word;
  }
#ifndef KVC_CUDA
  try {
    compute_device("cuda:1");
    FAIL() << "this build has no GPU support";
  } catch (const Error& error) {
    EXPECT_NE(std::string(error.what()).find("this build has no GPU support"), std::string::npos);
    EXPECT_EQ(error.code(), ExitCode::kFailed);
  }
#endif
}

TEST(OwnStream, RunsTheWorkWithoutGradients) {
  bool recorded = true;
  on_own_stream(at::kCPU, [&] { recorded = c10::GradMode::is_enabled(); });
  EXPECT_FALSE(recorded);
}

}  // namespace
}  // namespace kvc
