// Prompts that a GPU reads with a similar one's keys and values, beside the CPU's engine in the same type.
#include "runtime/gpu/gpu_reuse.h"

#include <gtest/gtest.h>

#include <numeric>
#include <string>

#include "runtime/gpu/gpu_turns.h"
#include "runtime/turn_sequence.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/error_of.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using testing::gpu_text;
using testing::options_of;
using testing::Row;

// With every seventh token another one.
Row paraphrase(Row ids) {
  for (std::size_t i = 3; i < ids.size(); i += 7) {
    ids[i] = (ids[i] + 11) % 96;
  }
  return ids;
}

class GpuReuse : public testing::TinyGpuModel {
 protected:
  EngineOptions options(const std::string& settings, const std::string& kv_dtype = {}) const {
    EngineOptions options;
    options.dtype = "float16";
    options.kv_dtype = kv_dtype;
    options.page_tokens = 32;
    options.reuse.donors = donors_.path();
    parse_reuse("min-tokens=20,least-tokens=4,min-similarity=0.5", options.reuse);
    parse_reuse(settings, options.reuse);
    return options;
  }
  GpuEngine load(const EngineOptions& options) const {
    return GpuEngine::load(directory_.path(), options, testing::emulated());
  }
  // Read as a whole by an engine on the GPU, whose end waits until it is kept.
  void keep(const Row& donor) const {
    const GpuEngine engine = load(options(""));
    const GenerateResult result = engine.generate({donor}, options_of(1));
    EXPECT_EQ(result.sequences[0].reuse->whole, "no donor");
  }
  // The CPU's engine and the GPU's find the donor, and say the same.
  GenerateResult expect_same(const EngineOptions& given, const Engine::Ids& prompts,
                             const GenerateOptions& generate_options) const {
    EngineOptions options = given;
    options.reuse.store = false;
    const GenerateResult expected =
        generate(Engine::load(directory_.path(), options), prompts, generate_options);
    const GenerateResult result = load(options).generate(prompts, generate_options);
    EXPECT_EQ(result.sequences.size(), expected.sequences.size());
    for (std::size_t i = 0; i < result.sequences.size(); ++i) {
      const Generated &own = result.sequences[i], &other = expected.sequences[i];
      EXPECT_EQ(own.tokens, other.tokens) << i;
      EXPECT_EQ(own.num_tokens, other.num_tokens);
      EXPECT_EQ(own.reuse->donor, other.reuse->donor);
      EXPECT_EQ(own.reuse->whole, other.reuse->whole);
      EXPECT_EQ(own.reuse->recomputed, other.reuse->recomputed);
      EXPECT_EQ(own.reuse->retained, other.reuse->retained);
      EXPECT_NEAR(own.reuse->similarity, other.reuse->similarity, 1e-5);
    }
    return result;
  }

  testing::TemporaryDirectory donors_;
  const Row donor_ = gpu_text(90, 1), target_ = paraphrase(donor_);
};

// Pages of both layers from the first row that is kept on, up to `capacity`.
std::int64_t bytes_of(const ReuseReport& report, std::int64_t num_tokens, std::int64_t capacity) {
  std::int64_t pages = 0;
  for (const std::int64_t retained : report.retained) {
    pages += (capacity + 31) / 32 - (num_tokens - retained) / 32;
  }
  return pages * 32 * 2 * 2 * 64;
}

TEST_F(GpuReuse, ReadsPromptsAsTheEngineDoes) {
  keep(donor_);
  for (const char* settings :
       {"retention=all", "retention=all,rerotate=on,hot=1,cold=1,decay=1", "retention=decay",
        "retention=constant,retain-first=0.3,recovery=0.1"}) {
    const GenerateResult result = expect_same(options(settings), {target_}, options_of(6));
    const Generated& generated = result.sequences[0];
    ASSERT_NE(generated.reuse->donor, "") << settings;
    EXPECT_EQ(generated.bytes.total(), bytes_of(*generated.reuse, 90, 96)) << settings;
    EXPECT_EQ(generated.reuse->retained.back() == 90,
              std::string(settings).find("all") != std::string::npos)
        << settings;
  }
}

// Samples and beams hold copies of what a layer keeps; a prompt without a donor beside one with.
TEST_F(GpuReuse, ReadsEverySequenceOfABatchByItself) {
  keep(donor_);
  const EngineOptions decay = options("retention=decay,retain-first=0.5,recovery=0.2");
  const Engine::Ids prompts = {gpu_text(40, 77), target_};
  GenerateOptions samples = options_of(4);
  samples.num_samples = 2;
  const GenerateResult result = expect_same(decay, prompts, samples);
  EXPECT_EQ(result.sequences[0].reuse->donor, "");
  EXPECT_NE(result.sequences[3].reuse->donor, "");
  GenerateOptions beams = options_of(4);
  beams.num_beams = 3;
  expect_same(decay, {target_}, beams);
  GenerateOptions rest = options_of(4);
  rest.prefill_tokens = 70;
  expect_same(decay, {target_}, rest);
}

TEST_F(GpuReuse, MakesCodesOfAllThatIsRetained) {
  const Row donor = gpu_text(190, 1);
  keep(donor);
  const GenerateResult result =
      expect_same(options("retention=all", "int8"), {paraphrase(donor)}, options_of(3));
  EXPECT_NE(result.sequences[0].reuse->donor, "");
}

TEST_F(GpuReuse, IsFollowedByFurtherTurns) {
  keep(donor_);
  EngineOptions decay = options("retention=decay,store=off");
  const Engine reference = Engine::load(directory_.path(), decay);
  const GpuEngine engine = load(decay);
  const auto expected = engine_turns(reference), turns = engine.turns();
  for (const Row& prompt : {target_, gpu_text(40, 5), gpu_text(9, 3)}) {
    for (TurnSequence* sequence : {expected.get(), turns.get()}) {
      sequence->read(prompt, options_of(4));
      for (int token = 0; token < 3; ++token) {
        sequence->next();
        sequence->append();
      }
    }
    EXPECT_EQ(turns->ids(), expected->ids());
  }
  EXPECT_LT(turns->bytes().total(),
            2 * plain_layer_bytes(engine.plan(), 149, KvDtype::kFloat16, 32));
}

TEST_F(GpuReuse, RefusesByNameWhatItDoesNotDo) {
  const auto refusal = [&](const std::filesystem::path& path, const EngineOptions& options) {
    return error_of([&] { GpuEngine::load(path, options, testing::emulated()); });
  };
  EngineOptions policy = options("");
  policy.policy = parse_token_policy("streamingllm:window=32");
  EXPECT_NE(refusal(directory_.path(), policy).find("with --donors"), std::string::npos);
  EXPECT_NE(refusal(directory_.path(), options("retention=decay", "int8")).find("retention=all"),
            std::string::npos);
  testing::SyntheticCheckpoint model = testing::tiny_gpu_model("mistral");
  model.window = 20;
  const testing::TemporaryDirectory windows;
  testing::write_synthetic_checkpoint(windows.path(), model);
  EXPECT_NE(refusal(windows.path(), options("retention=decay")).find("sliding window"),
            std::string::npos);
  EXPECT_EQ(refusal(windows.path(), options("retention=all")), "");
}

}  // namespace
}  // namespace kvc
