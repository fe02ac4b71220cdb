// What kvconvert makes of the reference checkpoint, in steps of the emulator beside the CPU's engine.
#include <fmt/format.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <string>
#include <tuple>
#include <vector>

#include "core/checkpoint.h"
#include "model/config.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/compression/latent_factors.h"
#include "runtime/generate.h"
#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/key_places.h"
#include "runtime/plan_source.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using testing::Row;

const fs::path kData = KVC_TEST_DATA;

class GpuConversion : public ::testing::Test {
 protected:
  // Runs the tool with few calibration tokens, a window and blocks that short texts leave.
  fs::path convert(const std::string& options,
                   const fs::path& checkpoint = kData / "reference-llama") const {
    const fs::path out = directory_ / "converted";
    const std::string command = fmt::format(
        "{}/kvconvert {} --out {} --num-sequences 10 --seq-len 128 --no-validate --quiet "
        "--window 24 {}",
        KVC_BIN_DIR, checkpoint.string(), out.string(), options);
    EXPECT_EQ(std::system(command.c_str()), 0) << command;
    return out;
  }
  // Two prompts, of so many tokens.
  static std::vector<Row> prompts(std::int64_t longer, std::int64_t shorter) {
    std::ifstream file(kData / "texts" / "tinystories_heldout.txt");
    const std::string text{std::istreambuf_iterator<char>(file), {}};
    const Row ids = Tokenizer::load(kData / "reference-llama").encode(text.substr(0, 4000));
    return {Row(ids.begin(), ids.begin() + longer), Row(ids.end() - shorter, ids.end())};
  }
  // Three steps, in which a block leaves the window.
  static void expect_steps(const fs::path& checkpoint, std::int64_t longer) {
    testing::GpuCase test_case{.longest = longer + 4, .num_steps = 3};
    test_case.checkpoint = checkpoint;
    test_case.texts = prompts(longer, 40);
    testing::expect_gpu_steps(test_case);
  }
  // Generation of the engines, loaded as kvrun loads them.
  static void expect_greedy_tokens(const fs::path& checkpoint) {
    GenerateOptions options;
    options.max_new_tokens = 4;
    const Engine::Ids prompt = {prompts(100, 40).front()};
    const GpuEngine engine = testing::emulated_engine(checkpoint);
    const GenerateResult result =
        testing::expect_same_tokens(checkpoint, engine, prompt, options).result;
    ASSERT_EQ(result.sequences.size(), 1u);
    const KvBytes bytes = result.sequences[0].bytes;
    EXPECT_GT(bytes.merged + bytes.coded, 0);
    EXPECT_LE(bytes.total(), engine.kv_peak_bytes());
    EXPECT_LE(engine.kv_peak_bytes(),
              gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {100}, 4));
  }

  testing::TemporaryDirectory directory_;
};

TEST_F(GpuConversion, RunsTheDefaultMethod) {
  const fs::path converted = convert("--group 4 --rank 0.7 --block 2");
  expect_steps(converted, 120);
  expect_greedy_tokens(converted);
}

// Some of a head's 32 rotary pairs are numbers of the latents: kernels rebuild the others, 24 with what they pad.
TEST_F(GpuConversion, ReadsKeysThatLatentsHold) {
  const std::tuple<const char*, double, std::int64_t> kCases[] = {{"llama", 0.625, 10},
                                                                  {"qwen2", 0.75, 12}};
  for (const auto& [model_type, rank, num_stored] : kCases) {
    testing::SyntheticCheckpoint model = testing::tiny_gpu_model(model_type);
    model.hidden_size = 128;
    model.head_dim = 64;
    model.tokenizer = true;
    const fs::path source = directory_ / model_type;
    testing::write_synthetic_checkpoint(source, model);
    const fs::path converted = convert(
        fmt::format("--force --group 2 --block 2 --rank {} --rank-multiple 8 --gauge pivot", rank),
        source);
    const Checkpoint checkpoint = Checkpoint::open(converted);
    const ModelConfig config = read_model_config(checkpoint);
    const KvPlan plan = plan_of(checkpoint, config);
    const LatentFactors factors =
        load_latent_factors(checkpoint, plan, config.hidden_size, at::kFloat);
    const RopeTables rope(config, at::kFloat);
    for (int layer = 0; layer < 2; ++layer) {
      const KeptChannels& kept =
          factors.groups.front().merged_layers[static_cast<std::size_t>(layer)].kept;
      const KeyPlaces places = key_places(config, rope, layer, kept);
      EXPECT_EQ(places.num_stored, num_stored) << model_type;
      EXPECT_EQ(places.rebuilt.num_pairs(), 24);
    }
    testing::GpuCase test_case{.longest = 74, .num_steps = 3};
    test_case.checkpoint = converted;
    test_case.texts = {testing::gpu_text(70, 3), testing::gpu_text(9, 11)};
    testing::expect_gpu_steps(test_case);
  }
}

TEST_F(GpuConversion, FindsDirectionsOfEveryRequest) {
  const fs::path converted =
      convert("--method xkv --group 4 --key-rank 8 --value-rank 12 --block 2");
  expect_steps(converted, 120);
  expect_greedy_tokens(converted);
}

TEST_F(GpuConversion, RunsCodedLayersOfEveryScope) {
  const fs::path converted = convert(
      "--method coded --kept-ratio 0.3 --group 2 --scope head:0-3,layer:4-7,group:8-11 --sink 4 "
      "--calibration builtin --factor-dtype float32");
  expect_steps(converted, 122);
  expect_greedy_tokens(converted);
}

}  // namespace
}  // namespace kvc
