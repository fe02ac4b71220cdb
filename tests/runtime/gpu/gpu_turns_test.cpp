// Conversations on a GPU, turn by turn, beside the CPU's engine.
#include "runtime/gpu/gpu_turns.h"

#include <gtest/gtest.h>

#include "runtime/turn_sequence.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using testing::gpu_text;
using testing::options_of;
using testing::Row;
using testing::SyntheticCheckpoint;

EngineOptions wide_options() {
  EngineOptions options;
  options.dtype = "float32";
  options.kv_dtype = "float16";
  options.page_tokens = 32;
  return options;
}

// A turn's prompt and `count` tokens of at most 5.
Row say(TurnSequence& sequence, const Row& prompt, std::int64_t count) {
  sequence.read(prompt, options_of(5));
  Row tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    tokens.push_back(sequence.next());
    sequence.append();
  }
  return tokens;
}

void write_plan(const std::filesystem::path& directory, const SyntheticCheckpoint& model,
                const std::optional<KvPlan>& plan) {
  if (plan) {
    testing::write_factored_checkpoint(directory, model, *plan);
  } else {
    testing::write_synthetic_checkpoint(directory, model);
  }
}

using Turns = std::vector<std::pair<Row, std::int64_t>>;  // prompts and tokens that follow

// The second ends before its five tokens: the third's prompt stands where it ended.
const Turns kThree = {{gpu_text(40, 1), 5}, {gpu_text(9, 7), 2}, {gpu_text(35, 2), 5}};

void expect_turns(const SyntheticCheckpoint& model, const std::optional<KvPlan>& plan,
                  const Turns& said = kThree) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  write_plan(directory.path(), model, plan);
  const Engine reference = Engine::load(directory.path(), wide_options());
  const GpuEngine engine = testing::emulated_engine(directory.path());
  const auto expected = engine_turns(reference);
  const auto turns = engine.turns();
  EXPECT_EQ(turns->bytes().total(), 0);
  for (const auto& [prompt, count] : said) {
    EXPECT_EQ(say(*turns, prompt, count), say(*expected, prompt, count));
    EXPECT_EQ(turns->ids(), expected->ids());
    EXPECT_EQ(turns->bytes().merged > 0, expected->bytes().merged > 0);
    EXPECT_EQ(turns->bytes().coded > 0, expected->bytes().coded > 0);
  }
}

TEST(GpuTurns, AreTheEngines) {
  const SyntheticCheckpoint model = testing::tiny_gpu_model("llama");
  expect_turns(model, {});
  CompressionSettings policy = testing::small_policy(MergeRule::kLs);
  policy.target_kept_ratio = 0.3;
  expect_turns(model, testing::grouped_plan(model, 2, 40, policy));
  expect_turns(model, testing::coded_plan(model, {.scope = testing::CodedScope::kLayer}));
}

// Each of the later ones becomes a segment of its own: more than one launch combines, and less memory than exact tokens.
TEST(GpuTurns, HaveDirectionsOfTheirOwn) {
  const SyntheticCheckpoint model = testing::tiny_gpu_model("llama");
  KvPlan plan = testing::principal_plan(model, 2, LatentBasis::kRequest, false, 8, 16);
  plan.request->later = LaterTokens::kNewSegment;
  plan.check();
  ASSERT_LT(break_even_tokens(plan, KvDtype::kFloat16), 50);
  Turns said;
  for (std::int64_t turn = 0; turn < 6; ++turn) {
    said.emplace_back(gpu_text(60, 3 * turn), 2);
  }
  expect_turns(model, plan, said);
}

TEST(GpuTurns, TakeThePagesOfPromptsAndWhatMayFollow) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  const SyntheticCheckpoint model = testing::tiny_gpu_model("llama");
  write_plan(directory.path(), model, {});
  const GpuEngine engine = testing::emulated_engine(directory.path());
  const auto bytes = [&](std::int64_t tokens) {
    return 2 * plain_layer_bytes(engine.plan(), tokens, KvDtype::kFloat16, 32);
  };
  const auto turns = engine.turns();
  say(*turns, gpu_text(30, 1), 1);
  EXPECT_EQ(turns->bytes().total(), bytes(35));
  say(*turns, gpu_text(20, 1), 5);
  EXPECT_EQ(turns->bytes().total(), bytes(56));
  say(*turns, gpu_text(10, 1), 0);
  EXPECT_EQ(turns->bytes().total(), bytes(71));
}

TEST(GpuTurns, HoldNothingWhereReadingWasInterrupted) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  write_plan(directory.path(), testing::tiny_gpu_model("llama"), {});
  const GpuEngine engine = testing::emulated_engine(directory.path());
  const auto turns = engine.turns();
  const Row first = say(*turns, gpu_text(12, 1), 3);
  GenerateOptions stopped = options_of(5);
  stopped.stopped = [] { return true; };
  EXPECT_THROW(turns->read(gpu_text(4, 2), stopped), Interrupted);
  EXPECT_TRUE(turns->ids().empty());
  EXPECT_EQ(turns->bytes().total(), 0);
  EXPECT_EQ(say(*turns, gpu_text(12, 1), 3), first);
}

TEST(GpuTurns, SayWhatFitsWhereMemoryIsShort) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  write_plan(directory.path(), testing::tiny_gpu_model("llama"), {});
  EngineOptions options;
  options.dtype = "float16";
  const auto refusal = [&](std::int64_t new_tokens) {
    options.memory_bytes = 4 * 32 * 2 * 2 * 2 * 64;  // four pages of both layers
    const GpuEngine engine = GpuEngine::load(directory.path(), options, testing::emulated());
    const auto turns = engine.turns();
    say(*turns, gpu_text(40, 1), 5);
    return error_of([&] { turns->read(gpu_text(40, 2), options_of(new_tokens)); });
  };
  const std::string error = refusal(100);
  EXPECT_NE(error.find("of earlier turns and --memory allows"), std::string::npos) << error;
  const std::size_t at = error.find("--max-new-tokens ");
  ASSERT_NE(at, std::string::npos) << error;
  EXPECT_EQ(std::stoll(error.substr(at + 17)), 128 - 85);
  EXPECT_EQ(refusal(43), "");
}

// With the least memory that is said to be enough, which is found by halves, no more is taken.
void expect_foreseen(const KvPlan& plan) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  testing::write_factored_checkpoint(directory.path(), testing::tiny_gpu_model("llama"), plan);
  EngineOptions options;
  options.dtype = "float16";
  const auto reads = [&](std::int64_t memory) {
    options.memory_bytes = memory;
    const GpuEngine engine = GpuEngine::load(directory.path(), options, testing::emulated());
    GpuTurns turns(engine);
    const std::string failure = error_of([&] {
      for (const std::int64_t length : {40, 64, 90}) {
        say(turns, gpu_text(length, 1), 2);
      }
    });
    EXPECT_LE(turns.peak_bytes(), memory);
    return failure.empty();
  };
  std::int64_t least = 0, enough = 1 << 19;
  ASSERT_TRUE(reads(enough));
  while (enough - least > 1 << 13) {
    const std::int64_t middle = (least + enough) / 2;
    (reads(middle) ? enough : least) = middle;
  }
  EXPECT_GT(least, 0);
}

TEST(GpuTurns, TakeNoMoreThanForeseen) {
  const SyntheticCheckpoint model = testing::tiny_gpu_model("llama");
  CompressionSettings policy = testing::small_policy(MergeRule::kLs);
  policy.target_kept_ratio = 0.4;
  expect_foreseen(testing::grouped_plan(model, 2, 40, policy));
  expect_foreseen(testing::coded_plan(model, {.scope = testing::CodedScope::kGroup}));
}

TEST(GpuTurns, RefuseByNameWhatDoesNotGoOn) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  const SyntheticCheckpoint model = testing::tiny_gpu_model("llama");
  EngineOptions options;
  options.dtype = "float16";
  const auto refusal = [&](const std::filesystem::path& path) {
    const GpuEngine engine = GpuEngine::load(path, options, testing::emulated());
    return error_of([&] { engine.turns(); });
  };
  testing::write_synthetic_checkpoint(directory.path() / "plain", model);
  options.policy = parse_token_policy("streamingllm:window=32");
  EXPECT_NE(refusal(directory.path() / "plain").find("--policy streamingllm"), std::string::npos);
}

}  // namespace
}  // namespace kvc
