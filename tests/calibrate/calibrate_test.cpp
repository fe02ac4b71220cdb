#include "calibrate/calibrate.h"

#include <ATen/ATen.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <fstream>
#include <sstream>

#include "core/error.h"
#include "core/hdf5.h"
#include "core/statistics_file.h"
#include "model/decoder.h"
#include "model/token_input.h"
#include "tests/testing/error_of.h"
#include "tests/testing/statistics.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;
using testing::random_ids;
using testing::SyntheticCheckpoint;
using testing::tensors_close;
using testing::token_set;

std::string bytes_of(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

at::Tensor read(const Hdf5Reader& file, const std::string& path) {
  const std::vector<std::int64_t> shape = file.shape(path);
  return at::tensor(file.doubles(path, shape), at::kDouble).reshape(shape);
}

// Keeps what every layer's projections saw while the whole model runs in memory.
class RecordingAttention : public Attention {
 public:
  explicit RecordingAttention(const Decoder& decoder)
      : attention_(decoder.config(), decoder.rope()) {}
  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    hidden.push_back(input.hidden.to(at::kDouble));
    key.push_back(input.key.flatten(1).to(at::kDouble));
    value.push_back(input.value.flatten(1).to(at::kDouble));
    return attention_.attend(layer, input, batch);
  }
  std::vector<at::Tensor> hidden, key, value;  // [num_layers] of [num_tokens, ...]

 private:
  FullAttention attention_;
};

class CalibrateTest : public testing::StatisticsTest {
 protected:
  void run(const std::vector<std::vector<std::int64_t>>& sequences, const std::string& name) {
    calibrate(checkpoint_, token_set(sequences), directory_ / name, false);
  }
};

// As on a GPU: activations of 8 bits, sums that lose nothing more.
TEST_P(CalibrateTest, SumsOfBFloat16ActivationsAreCloseAndRepeatable) {
  const std::vector<std::vector<std::int64_t>> sequences = random_ids(4, 40, 96, 3);
  const ComputePlace place{at::kCPU, at::kBFloat16};
  run(sequences, "wide.h5");
  calibrate(checkpoint_, token_set(sequences), directory_ / "narrow.h5", false, place);
  calibrate(checkpoint_, token_set(sequences), directory_ / "again.h5", false, place);
  EXPECT_EQ(bytes_of(directory_ / "narrow.h5"), bytes_of(directory_ / "again.h5"));
  const Hdf5Reader wide(directory_ / "wide.h5"), narrow(directory_ / "narrow.h5");
  for (const char* name :
       {"/layers/3/gram", "/layers/3/key_second_moment", "/pairs/2/value_cross"}) {
    const at::Tensor expected = read(wide, name), actual = read(narrow, name);
    const double error = (actual - expected).norm().item<double>();
    EXPECT_LT(error, 0.02 * expected.norm().item<double>()) << name;
    EXPECT_GT(error, 0) << name;  // it was bfloat16
  }
  EXPECT_FALSE(artifact_matches(directory_ / "narrow.h5",
                                calibration_provenance(checkpoint_, token_set(sequences))));
  EXPECT_TRUE(artifact_matches(directory_ / "narrow.h5",
                               calibration_provenance(checkpoint_, token_set(sequences), place)));
}

TEST_P(CalibrateTest, EqualsADirectComputation) {
  const std::vector<std::vector<std::int64_t>> sequences = {random_ids(1, 11, 96, 1).front(),
                                                            random_ids(1, 5, 96, 2).front()};
  run(sequences, "c.h5");
  const Decoder decoder(checkpoint_, at::kFloat);
  RecordingAttention seen(decoder);
  decoder.forward(TokenBatch::of(sequences), seen);
  const Hdf5Reader file(directory_ / "c.h5");
  EXPECT_EQ(file.ints("/num_tokens", {1}).front(), 16);
  EXPECT_EQ(file.children("/layers").size(), 4u);
  EXPECT_EQ(file.children("/pairs").size(), 3u);
  for (std::size_t layer = 0; layer < 4; ++layer) {
    const std::string group = "/layers/" + std::to_string(layer) + "/";
    const at::Tensor &x = seen.hidden[layer], &k = seen.key[layer], &v = seen.value[layer];
    EXPECT_TRUE(tensors_close(read(file, group + "gram"), x.t().mm(x), 1e-3));
    EXPECT_TRUE(tensors_close(read(file, group + "key_sum"), k.sum(0), 1e-3));
    EXPECT_TRUE(tensors_close(read(file, group + "value_sum"), v.sum(0), 1e-3));
    EXPECT_TRUE(tensors_close(read(file, group + "key_second_moment"), k.t().mm(k), 1e-3));
    EXPECT_TRUE(tensors_close(read(file, group + "value_second_moment"), v.t().mm(v), 1e-3));
    if (layer + 1 < 4) {
      const std::string pair = "/pairs/" + std::to_string(layer) + "/";
      const at::Tensor &next_k = seen.key[layer + 1], &next_v = seen.value[layer + 1];
      EXPECT_TRUE(tensors_close(read(file, pair + "key_cross"), k.t().mm(next_k), 1e-3));
      EXPECT_TRUE(tensors_close(read(file, pair + "value_cross"), v.t().mm(next_v), 1e-3));
      EXPECT_TRUE(tensors_close(read(file, pair + "key_cosine_sum"),
                                at::cosine_similarity(k, next_k).sum().reshape({1}), 1e-4));
      EXPECT_TRUE(tensors_close(read(file, pair + "value_cosine_sum"),
                                at::cosine_similarity(v, next_v).sum().reshape({1}), 1e-4));
    }
  }
}

// A cut anywhere between sequences, into sets of other sizes than a whole batch.
TEST_P(CalibrateTest, HalvesAddUpToOneRun) {
  const auto all = random_ids(5, 7, 96, 3);
  run(all, "all.h5");
  run({all.begin(), all.begin() + 2}, "a.h5");
  run({all.begin() + 2, all.end()}, "b.h5");
  add_calibrations({directory_ / "a.h5", directory_ / "b.h5"}, directory_ / "sum.h5", false);
  const Hdf5Reader whole(directory_ / "all.h5"), sum(directory_ / "sum.h5");
  EXPECT_EQ(sum.ints("/num_tokens", {1}), whole.ints("/num_tokens", {1}));
  for (const std::string parent : {"/layers", "/pairs"}) {
    for (const std::string& group : whole.children(parent)) {
      for (const std::string& name : whole.children(parent + "/" + group)) {
        const std::string path = parent + "/" + group + "/" + name;
        const at::Tensor expected = read(whole, path);
        EXPECT_TRUE(
            tensors_close(read(sum, path), expected, 1e-12 * expected.abs().max().item<double>()))
            << path;
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Architectures, CalibrateTest,
                         ::testing::Values("llama", "qwen2", "qwen3"));

class CalibrateFileTest : public CalibrateTest {};
INSTANTIATE_TEST_SUITE_P(Llama, CalibrateFileTest, ::testing::Values("llama"));

TEST_P(CalibrateFileTest, EqualRunsGiveEqualBytes) {
  run(random_ids(2, 9, 96, 4), "a.h5");
  run(random_ids(2, 9, 96, 4), "b.h5");
  EXPECT_EQ(bytes_of(directory_ / "a.h5"), bytes_of(directory_ / "b.h5"));
}

TEST_P(CalibrateFileTest, StagesReadTheGramOfTheirCheckpointOnly) {
  const TokenSet tokens = token_set(random_ids(2, 9, 96, 4));
  run(tokens.sequences, "a.h5");
  EXPECT_TRUE(artifact_matches(directory_ / "a.h5", calibration_provenance(checkpoint_, tokens)));
  const GramSum gram = read_gram(directory_ / "a.h5", checkpoint_.hash(), 2, 32);
  EXPECT_EQ(gram.num_tokens, 18);
  EXPECT_EQ(gram.gram.size(), 32u * 32u);
  EXPECT_THROW(read_gram(directory_ / "a.h5", "another", 2, 32), Error);
}

TEST_P(CalibrateFileTest, RefusesCalibrationsOfAnotherCheckpoint) {
  run(random_ids(1, 4, 96, 5), "a.h5");
  SyntheticCheckpoint other;
  other.seed = 1;
  write_synthetic_checkpoint(directory_ / "other", other);
  calibrate(Checkpoint::open(directory_ / "other"), token_set(random_ids(1, 4, 96, 5)),
            directory_ / "b.h5", false);
  EXPECT_THROW(
      add_calibrations({directory_ / "a.h5", directory_ / "b.h5"}, directory_ / "sum.h5", false),
      Error);
  EXPECT_FALSE(std::filesystem::exists(directory_ / "sum.h5"));
}

TEST_P(CalibrateFileTest, RefusesEvaluationTokensAndExistingOutputs) {
  TokenSet tokens = token_set(random_ids(1, 4, 96, 5));
  tokens.split = "evaluation";
  write_token_set(directory_ / "tokens.h5", tokens);
  const Checkpoint checkpoint = Checkpoint::open(directory_ / "model");
  const TokenInput input{.tokens = directory_ / "tokens.h5"};
  EXPECT_THAT(error_of([&] { load_calibration_tokens(input, checkpoint, 96); }),
              HasSubstr("evaluation split"));
  tokens.split = "calibration";
  std::filesystem::remove(input.tokens);
  write_token_set(input.tokens, tokens);
  const TokenSet loaded = load_calibration_tokens(input, checkpoint, 96);
  calibrate(checkpoint, loaded, directory_ / "c.h5", false);
  EXPECT_THROW(calibrate(checkpoint, loaded, directory_ / "c.h5", false), Error);
  EXPECT_NO_THROW(calibrate(checkpoint, loaded, directory_ / "c.h5", true));
}

}  // namespace
}  // namespace kvc
