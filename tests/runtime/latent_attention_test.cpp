// One query over a latent group, through the kernels, against the same through tensors.
#include "runtime/attention/latent_attention.h"

#include <gtest/gtest.h>

#include <memory>
#include <optional>
#include <string>

#include "runtime/attention/cache_segments.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc::latent_attention_test {
namespace {

using testing::random_normal;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_close;

constexpr std::int64_t kRank = 20, kTokens = 3300, kDecided = 3250;  // more than one tile is merged

struct Case {
  std::string name;
  SyntheticCheckpoint model;
  std::optional<KvElement> codes{};
  bool keeps_channels = false;  // keys' first channels are numbers of the latent
};

class LatentAttention : public ::testing::TestWithParam<Case> {
 protected:
  void SetUp() override {
    SyntheticCheckpoint model = GetParam().model;
    model.num_layers = 2;
    CompressionSettings policy;
    policy.rule = MergeRule::kLs;
    policy.sink_tokens = 0;
    plan_ = testing::grouped_plan(model, 2, kRank, policy);
    testing::write_factored_checkpoint(directory_.path(), model, plan_);
    const Checkpoint checkpoint = Checkpoint::open(directory_.path());
    decoder_ = std::make_unique<Decoder>(checkpoint, at::kFloat);
    factors_ = load_latent_factors(checkpoint, plan_, model.hidden_size, at::kFloat);
    if (GetParam().keeps_channels) {
      for (Reconstruction& layer : factors_.groups[0].merged_layers) {
        layer.key = layer.key.clone();
        layer.key.narrow(0, 0, 9).copy_(at::eye(kRank).narrow(0, 5, 9).flip(0));
        layer.kept = kept_channels(layer.key);
      }
    }
    fill(model);
  }

  // Two of three tokens are merged.
  void fill(const SyntheticCheckpoint& model) {
    store_ = std::make_unique<LatentStore>(
        plan_, 0, StoreOptions{std::make_shared<KvPool>(32), at::kFloat, GetParam().codes});
    for (int layer = 0; layer < 2; ++layer) {
      const auto seed = static_cast<std::uint64_t>(10 * layer);
      const std::vector<std::int64_t> shape{kTokens, model.num_kv_heads, model.head_dim};
      store_->append_pending(layer, random_normal(shape, seed), random_normal(shape, seed + 1));
      if (store_->holds_key_rms()) {
        store_->hold(layer, at::ones({kTokens, model.num_kv_heads}));
      }
    }
    const at::Tensor positions = at::arange(kDecided, at::kLong);
    const at::Tensor merge = positions % 3 != 0;
    store_->decide(merge, positions, random_normal({merge.sum().item<std::int64_t>(), kRank}, 5));
  }

  const TemporaryDirectory directory_;
  KvPlan plan_;
  std::unique_ptr<Decoder> decoder_;
  LatentFactors factors_;
  std::unique_ptr<LatentStore> store_;
};

TEST_P(LatentAttention, IsThatOverRebuiltKeysAndValues) {
  const ModelConfig& config = decoder_->config();
  const at::Tensor query = random_normal({1, config.num_heads, config.head_dim}, 7) * 2;
  const at::Tensor positions = at::full({1}, kTokens - 1, at::kLong);
  for (int index = 0; index < 2; ++index) {
    const GroupLayer layer{{*decoder_, plan_, 0, factors_.groups[0], *store_}, index};
    const std::vector<Segment> segments = cache_segments(layer.group, index, kTokens, 1);
    EXPECT_TRUE(tensors_close(
        attend_group(layer, query, positions),
        attend_segments(query, positions, segments, attention_rule(config, layer.layer())),
        GetParam().codes ? 1e-3 : 1e-5));
  }
}

INSTANTIATE_TEST_SUITE_P(
    Models, LatentAttention,
    ::testing::Values(Case{"rope", {.model_type = "llama"}},
                      Case{"wide_heads", {.model_type = "llama", .head_dim = 64}},
                      Case{"biases", {.model_type = "qwen2"}},
                      Case{"norm_of_each_head", {.model_type = "qwen3"}},
                      Case{"norm_of_all_heads", {.model_type = "olmo2"}},
                      Case{"window", {.model_type = "mistral", .window = 1700}},
                      Case{"few_seen", {.model_type = "mistral", .window = 40}},
                      Case{"without_rope", {.model_type = "smollm3"}},
                      Case{"kept_channels", {.model_type = "llama"}, std::nullopt, true},
                      Case{"codes", {.model_type = "llama", .head_dim = 64}, KvElement::kInt8}),
    [](const auto& row) { return row.param.name; });

}  // namespace
}  // namespace kvc::latent_attention_test
