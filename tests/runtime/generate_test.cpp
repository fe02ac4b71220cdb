#include "runtime/generate.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

Engine load(const testing::SyntheticCheckpoint& model, bool time_parts = false) {
  const testing::TemporaryDirectory directory;
  testing::write_synthetic_checkpoint(directory.path(), model);
  EngineOptions options;
  options.page_tokens = 4;
  options.prefill_chunk = 8;
  options.time_parts = time_parts;
  return Engine::load(directory.path(), options);
}

GenerateOptions sampled(std::uint64_t seed, std::int64_t num_samples) {
  GenerateOptions options;
  options.max_new_tokens = 6;
  options.sampling.temperature = 1;
  options.seed = seed;
  options.num_samples = num_samples;
  return options;
}

const Engine::Ids kPrompts = testing::random_ids(2, 20, 96, 1);

TEST(Generate, SamplesAreThoseOfSeparateRuns) {
  const Engine engine = load({});
  const GenerateResult result = generate(engine, kPrompts, sampled(7, 3));
  ASSERT_EQ(result.sequences.size(), 6u);
  for (std::size_t i = 0; i < 6; ++i) {
    const GenerateResult alone = generate(engine, {kPrompts[i / 3]}, sampled(7 + i, 1));
    EXPECT_EQ(result.sequences[i].tokens, alone.sequences[0].tokens) << i;
    EXPECT_EQ(result.sequences[i].num_tokens, 25);
  }
  EXPECT_NE(result.sequences[0].tokens, result.sequences[1].tokens);
}

TEST(Generate, SamplesShareThePromptsMemory) {
  const Engine one = load({}), many = load({});
  GenerateOptions options = sampled(1, 1);
  options.max_new_tokens = 2;
  generate(one, {kPrompts[0]}, options);
  options.num_samples = 5;
  generate(many, {kPrompts[0]}, options);
  const std::int64_t pages_of_prompt = one.pool().peak_bytes() / 6 * 5;  // 20 tokens and one more
  EXPECT_EQ(one.pool().peak_bytes() % 6, 0);
  EXPECT_EQ(many.pool().peak_bytes(),
            pages_of_prompt + 5 * (one.pool().peak_bytes() - pages_of_prompt));
}

TEST(Generate, AVisitorEndsItsSequenceOnly) {
  const Engine engine = load({});
  std::vector<int> seen(2, 0);
  GenerateOptions options;
  options.max_new_tokens = 6;
  const GenerateResult result =
      generate(engine, kPrompts, options, [&](std::size_t sequence, std::int64_t) {
        ++seen[sequence];
        return sequence == 1 || seen[0] < 3;
      });
  EXPECT_EQ(result.sequences[0].tokens.size(), 3u);
  EXPECT_EQ(result.sequences[1].tokens.size(), 6u);
  EXPECT_FALSE(result.interrupted);
}

TEST(Generate, StoppedKeepsWhatThereIs) {
  const Engine engine = load({});
  GenerateOptions options;
  options.max_new_tokens = 50;
  int produced = 0;
  options.stopped = [&] { return produced >= 8; };
  const GenerateResult result = generate(engine, kPrompts, options, [&](std::size_t, std::int64_t) {
    ++produced;
    return true;
  });
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.sequences[0].tokens.size(), 4u);
  EXPECT_EQ(result.sequences[1].tokens.size(), 4u);
}

TEST(Generate, StoppedWhileThePromptIsRead) {
  const Engine engine = load({});
  for (const std::int64_t samples : {1, 3}) {
    GenerateOptions options;
    options.num_samples = samples;
    int asked = 0;
    options.stopped = [&] { return ++asked > 3; };
    const GenerateResult result = generate(engine, kPrompts, options);
    EXPECT_TRUE(result.interrupted);
    ASSERT_EQ(result.sequences.size(), static_cast<std::size_t>(2 * samples));
    for (const auto& sequence : result.sequences) {
      EXPECT_TRUE(sequence.tokens.empty());
      EXPECT_EQ(sequence.bytes.total(), 0);
    }
  }
}

// Eight tokens of the tail at a time.
TEST(Generate, StoppedWhileTheTailOfThePromptIsRead) {
  const Engine engine = load({.num_layers = 1});
  GenerateOptions options;
  options.prefill_tokens = 2;
  int asked = 0;
  options.stopped = [&] { return ++asked > 1; };  // not by the prefill of a single layer
  const GenerateResult result = generate(engine, {kPrompts[0]}, options);
  EXPECT_TRUE(result.interrupted);
  EXPECT_EQ(result.sequences[0].num_tokens, 10);
}

// As many beams as tokens find the best of all texts of two tokens.
TEST(Generate, BeamsFindTheMostProbableText) {
  const testing::SyntheticCheckpoint model{.vocab_size = 20};
  const Engine engine = load(model);
  const Engine::Ids prompt = testing::random_ids(1, 9, 20, 3);
  GenerateOptions options;
  options.max_new_tokens = 2;
  options.num_beams = 20;
  options.num_samples = 3;
  const GenerateResult result = generate(engine, prompt, options);
  std::vector<std::pair<float, std::vector<std::int64_t>>> texts;
  Sequence sequence = engine.new_sequence();
  const at::Tensor first =
      engine.prefill({&sequence}, prompt, Engine::Rows::kLast).front()[0].log_softmax(-1);
  for (std::int64_t a = 0; a < 20; ++a) {
    Sequence fork = sequence.fork();
    const at::Tensor second =
        engine.extend({&fork}, {{a}}, Engine::Rows::kLast).front()[0].log_softmax(-1);
    for (std::int64_t b = 0; b < 20; ++b) {
      texts.push_back({-first[a].item<float>() - second[b].item<float>(), {a, b}});
    }
  }
  std::sort(texts.begin(), texts.end());
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(result.sequences[i].tokens, texts[i].second);
  }
}

TEST(Generate, BeamsGiveTheirMemoryBack) {
  const Engine engine = load({});
  GenerateOptions options;
  options.max_new_tokens = 20;
  options.num_beams = 6;
  options.stop_ids = {5, 6};
  generate(engine, kPrompts, options);
  EXPECT_EQ(engine.pool().allocated_bytes(), 0);
  EXPECT_EQ(engine.pool().num_blocks(), 0);
}

TEST(Generate, TimesOfPartsAddUpToAlmostAll) {
  const Engine engine = load({.hidden_size = 256, .intermediate_size = 1024}, /*time_parts=*/true);
  GenerateOptions options;
  options.max_new_tokens = 20;
  const GenerateTiming timing = generate(engine, kPrompts, options).timing;
  for (const auto& [parts, seconds] : {std::pair(timing.prefill_parts, timing.prefill_seconds),
                                       {timing.decode_parts, timing.decode_seconds}}) {
    double sum = 0;
    for (const double part : parts.seconds) {
      EXPECT_GE(part, 0);
      sum += part;
    }
    EXPECT_LE(sum, seconds);
    EXPECT_GE(sum, 0.5 * seconds);
  }
  EXPECT_EQ(load({}).part_times(), nullptr);
}

}  // namespace
}  // namespace kvc
