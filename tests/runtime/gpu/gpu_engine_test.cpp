// The GPU runtime without a GPU: prompts through LibTorch on the CPU, steps in the emulator, against the CPU's engine.
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>

#include "core/error.h"
#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_prompt.h"
#include "runtime/gpu/gpu_step.h"
#include "runtime/plan_source.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/emulated_executor.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"

namespace kvc {
namespace {

using testing::EmulatedExecutor;
using testing::fused_upper_plan;
using testing::OneThread;
using testing::Row;
using testing::SyntheticCheckpoint;
using testing::TemporaryDirectory;
using testing::tensors_close;

SyntheticCheckpoint tiny_model(const std::string& model_type) {
  SyntheticCheckpoint model;
  model.model_type = model_type;
  model.num_layers = 2;
  model.hidden_size = 64;
  model.head_dim = 32;
  model.dtype = "float16";
  return model;
}

Row text_of(std::int64_t length, std::int64_t seed) {
  Row ids;
  for (std::int64_t i = 0; i < length; ++i) {
    ids.push_back((seed + 7 * i + i * i) % 96);
  }
  return ids;
}

void write(const TemporaryDirectory& directory, const SyntheticCheckpoint& model,
           const std::optional<KvPlan>& plan) {
  if (plan) {
    testing::write_factored_checkpoint(directory.path(), model, *plan);
  } else {
    testing::write_synthetic_checkpoint(directory.path(), model);
  }
}

struct Case {
  SyntheticCheckpoint model;
  std::optional<KvPlan> plan{};
  std::int64_t longest = 40;
  std::string weight_dtype{};
};

// Of float16 activations, beside float32: some roundings of the largest logit.
double tolerance_for(const at::Tensor& exact) {
  return 4e-3 * std::max(5.0, exact.abs().max().item<double>());
}

// Logits of every step beside the CPU engine's in float32, which reads the same tokens: after 31 tokens, so that the
// step crosses a page.
void expect_steps_of(const Case& test_case) {
  const OneThread one_thread;
  const TemporaryDirectory directory;
  write(directory, test_case.model, test_case.plan);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  EngineOptions wide;
  wide.dtype = "float32";
  wide.weight_dtype = test_case.weight_dtype;
  const Engine reference = Engine::load(directory.path(), wide);
  EmulatedExecutor executor;
  const GpuModel model =
      load_gpu_model(checkpoint, reference.plan(), at::kHalf,
                     parse_weight_type(test_case.weight_dtype), at::kCPU, executor.free_bytes());
  StepSequences sequences;
  sequences.texts = {text_of(test_case.longest - 9, 3), text_of(5, 11)};
  sequences.seeds = {1, 2};
  sequences.capacity = test_case.longest + 1;
  GpuCache cache(reference.plan(), at::kHalf, at::kCPU, 32, {test_case.longest, test_case.longest});
  const GpuStep step(model, cache, sequences, executor);
  std::vector<Sequence> expected;
  for (std::size_t i = 0; i < 2; ++i) {
    expected.push_back(reference.new_sequence());
    const at::Tensor exact =
        reference.prefill({&expected[i]}, {sequences.texts[i]}, Engine::Rows::kAll).front();
    const at::Tensor logits =
        read_gpu_prompt(model, cache, i, sequences.texts[i], {.chunk = 12, .all_logits = true});
    EXPECT_TRUE(tensors_close(logits, exact, tolerance_for(exact))) << "prompt " << i;
    step.state().logits[static_cast<std::int64_t>(i)].copy_(logits[-1]);
  }
  executor.run(step.sampling());
  for (int i = 0; i < 4; ++i) {
    const at::Tensor ids = step.state().ids.to(at::kLong);
    executor.run(step.program());
    for (std::size_t s = 0; s < 2; ++s) {
      const auto sequence = static_cast<std::int64_t>(s);
      const at::Tensor exact =
          reference
              .extend({&expected[s]}, {{ids[sequence].item<std::int64_t>()}}, Engine::Rows::kLast)
              .front();
      EXPECT_TRUE(
          tensors_close(step.state().logits.narrow(0, sequence, 1), exact, tolerance_for(exact)))
          << "sequence " << s << ", step " << i;
      EXPECT_EQ(step.state().ids[sequence].item<std::int64_t>(),
                step.state().logits[sequence].argmax().item<std::int64_t>());
    }
  }
}

TEST(GpuStep, IsTheEnginesForLlama) { expect_steps_of({tiny_model("llama")}); }

TEST(GpuStep, IsTheEnginesWithBiasesAndTiedEmbeddings) {
  SyntheticCheckpoint model = tiny_model("qwen2");
  model.tied_embeddings = true;
  expect_steps_of({model});
}

TEST(GpuStep, IsTheEnginesWithHeadNorms) { expect_steps_of({tiny_model("qwen3")}); }

TEST(GpuStep, IsTheEnginesWithSandwichNormsWindowsAndSoftcaps) {
  expect_steps_of({tiny_model("gemma2")});
}

TEST(GpuStep, IsTheEnginesUnderASlidingWindow) {
  SyntheticCheckpoint model = tiny_model("mistral");
  model.window = 8;
  expect_steps_of({model});
}

TEST(GpuStep, IsTheEnginesOfInt8Weights) {
  Case test_case{tiny_model("llama")};
  test_case.weight_dtype = "int8";
  test_case.model.tied_embeddings = true;
  expect_steps_of(test_case);
}

TEST(GpuStep, IsTheEnginesForFusedLayers) {
  SyntheticCheckpoint model = tiny_model("llama");
  model.num_layers = 4;
  for (const int sources : {1, 2}) {
    expect_steps_of({model, fused_upper_plan(model, FusionForm::kChannel, sources)});
  }
}

std::unique_ptr<StepExecutor> emulated(std::int64_t free_bytes = std::int64_t{1} << 40) {
  return std::make_unique<EmulatedExecutor>(free_bytes);
}

GenerateOptions options_of(std::int64_t new_tokens) {
  GenerateOptions options;
  options.max_new_tokens = new_tokens;
  return options;
}

class GpuEngineTest : public ::testing::Test {
 protected:
  GpuEngineTest() { testing::write_synthetic_checkpoint(directory_.path(), tiny_model("llama")); }
  GpuEngine load(const EngineOptions& options = {}) const {
    return GpuEngine::load(directory_.path(), options, emulated());
  }
  // What `work` fails with.
  static std::string failure(const std::function<void()>& work) {
    try {
      work();
    } catch (const Error& error) {
      return error.what();
    }
    return "nothing";
  }

  OneThread one_thread_;
  TemporaryDirectory directory_;
};

TEST_F(GpuEngineTest, GeneratesTheEnginesTokens) {
  EngineOptions wide;
  wide.dtype = "float32";
  const Engine reference = Engine::load(directory_.path(), wide);
  const Engine::Ids prompts = {text_of(20, 1), text_of(6, 5)};
  const GenerateResult expected = generate(reference, prompts, options_of(6));
  const GpuEngine engine = load();
  const GenerateResult result = engine.generate(prompts, options_of(6));
  ASSERT_EQ(result.sequences.size(), 2u);
  for (std::size_t i = 0; i < 2; ++i) {
    EXPECT_EQ(result.sequences[i].tokens, expected.sequences[i].tokens);
    EXPECT_EQ(result.sequences[i].num_tokens, expected.sequences[i].num_tokens);
    EXPECT_EQ(result.sequences[i].bytes.total(),
              2 * plain_layer_bytes(engine.plan(), static_cast<std::int64_t>(prompts[i].size()) + 6,
                                    KvDtype::kFloat16, 32));
  }
  EXPECT_EQ(engine.weight_bytes(), Engine::load(directory_.path(), {}).weight_bytes());
}

TEST_F(GpuEngineTest, SamplesTheSameTokensUnderTheSameSeed) {
  GenerateOptions options = options_of(5);
  options.sampling = {.temperature = 1, .top_k = 40, .top_p = 0.95, .repetition_penalty = 1.1};
  options.num_samples = 3;
  options.seed = 5;
  const GpuEngine engine = load();
  const GenerateResult first = engine.generate({text_of(7, 2)}, options);
  const GenerateResult second = engine.generate({text_of(7, 2)}, options);
  options.seed = 6;
  const GenerateResult other = engine.generate({text_of(7, 2)}, options);
  ASSERT_EQ(first.sequences.size(), 3u);
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(first.sequences[i].tokens, second.sequences[i].tokens);
  }
  EXPECT_NE(first.sequences[0].tokens, first.sequences[1].tokens);
  EXPECT_EQ(other.sequences[0].tokens,
            first.sequences[1].tokens);  // sequence i draws from seed + i
}

TEST_F(GpuEngineTest, EndsAtStopTokensAndWhereTheVisitorSaysSo) {
  const GpuEngine engine = load();
  const Engine::Ids prompts = {text_of(9, 4), text_of(4, 8)};
  const GenerateResult whole = engine.generate(prompts, options_of(6));
  GenerateOptions options = options_of(6);
  options.stop_ids = {whole.sequences[0].tokens[3]};
  const GenerateResult stopped = engine.generate(prompts, options);
  const auto& all = whole.sequences[0].tokens;
  const auto end = std::find(all.begin(), all.end(), all[3]);
  EXPECT_EQ(stopped.sequences[0].tokens, std::vector<std::int64_t>(all.begin(), end));
  const GenerateResult visited =
      engine.generate(prompts, options_of(6), [](std::size_t, std::int64_t) { return false; });
  EXPECT_EQ(visited.sequences[1].tokens.size(), 1u);
}

TEST_F(GpuEngineTest, SaysWhatFitsWhereMemoryIsShort) {
  const GpuEngine engine = GpuEngine::load(directory_.path(), {}, emulated(std::int64_t{1} << 20));
  const std::string error = failure([&] { engine.generate({text_of(9, 4)}, options_of(100000)); });
  EXPECT_NE(error.find("bytes of KV cache"), std::string::npos) << error;
  const std::size_t at = error.find("--max-new-tokens ");
  ASSERT_NE(at, std::string::npos) << error;
  const std::int64_t fits = std::stoll(error.substr(at + 17));
  EXPECT_GT(fits, 0);
  EXPECT_NE(failure([&] { engine.generate({text_of(9, 4)}, options_of(fits + 1)); }), "nothing");
  EXPECT_NE(failure([&] {
              GpuEngine::load(directory_.path(), {}, emulated(1000));
            }).find("bytes of weights, the GPU has 1000 free"),
            std::string::npos);
}

TEST_F(GpuEngineTest, RefusesByNameWhatItDoesNotDo) {
  const auto refusal = [&](const EngineOptions& options) {
    return failure([&] { load(options); });
  };
  EngineOptions options;
  options.dtype = "float32";
  EXPECT_NE(refusal(options).find("--dtype bfloat16"), std::string::npos);
  options.dtype = "bfloat16";
  options.kv_dtype = "int8";
  EXPECT_NE(refusal(options).find("not as int8"), std::string::npos);
  options.kv_dtype = {};
  options.policy = parse_token_policy("h2o:budget=64");
  EXPECT_NE(refusal(options).find("--policy h2o"), std::string::npos);
  GenerateOptions beams = options_of(4);
  beams.num_beams = 2;
  EXPECT_NE(failure([&] { load().generate({text_of(3, 1)}, beams); }).find("--beams"),
            std::string::npos);
  const TemporaryDirectory other;
  const SyntheticCheckpoint model = tiny_model("llama");
  testing::write_factored_checkpoint(
      other.path(), model,
      testing::grouped_plan(model, 2, 16, testing::small_policy(MergeRule::kLs)));
  EXPECT_NE(
      failure([&] { GpuEngine::load(other.path(), {}, emulated()); }).find("layer 0 is latent"),
      std::string::npos);
}

}  // namespace
}  // namespace kvc
