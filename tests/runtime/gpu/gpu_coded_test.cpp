// Steps of coded layers: tokens become codes as in the CPU's engine, and attention reads them.
#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

#include "runtime/compression/coding.h"
#include "runtime/gpu/gpu_coding.h"
#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/gpu_forecast.h"
#include "runtime/gpu/gpu_prompt.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/emulated_executor.h"
#include "tests/runtime/gpu/gpu_fixture.h"
#include "tests/testing/temporary_directory.h"

namespace kvc {
namespace {

using testing::coded_plan;
using testing::CodedPlanOptions;
using testing::CodedScope;
using testing::expect_gpu_steps;
using testing::GpuCase;
using testing::SyntheticCheckpoint;
using testing::tiny_gpu_model;

constexpr CodedScope kScopes[] = {CodedScope::kHead, CodedScope::kLayer, CodedScope::kGroup};

// A tile after the prompt, and a second one after two steps.
GpuCase two_tiles(const SyntheticCheckpoint& model, const KvPlan& plan) {
  return {.model = model, .plan = plan, .prompt = 70, .longest = 80};
}

// Head by head, as a whole, two together, and one that is not coded.
KvPlan mixed_plan(const SyntheticCheckpoint& model) {
  KvPlan plan = coded_plan(model, {.scope = CodedScope::kLayer, .coefficients = {0, 0, 9, 0, 20}});
  const CodedBlock whole = plan.coded.front();
  plan.coded.clear();
  for (int head = 0; head < static_cast<int>(model.num_kv_heads); ++head) {
    CodedBlock& block = plan.coded.emplace_back(whole);
    block.head = head;
    block.coefficients[1] = 7 * head;  // heads of different widths
    block.gain = head == 1;
  }
  plan.coded.emplace_back(whole).first_layer = 1;
  CodedBlock& two = plan.coded.emplace_back(whole);
  two.first_layer = 2;
  two.num_layers = 2;
  two.coefficients[8] = 30;
  plan.layers.back() = KvSource::kPlain;
  plan.check();
  return plan;
}

// Keys apart from values, in another form in every layer, without narrow codes: one that is a step apart, because exact
// rows were rounded, would differ by more than the rounding of all else; the first head of `rotated` has other widths.
KvPlan mixed_forms(const SyntheticCheckpoint& model) {
  const auto bases = static_cast<int>(model.head_dim / 2);
  const CodedPlanOptions forms[] = {
      {.scope = CodedScope::kHead,
       .coefficients = {0, 0, 0, 0, 24, 6, 3},
       .bases = bases,
       .rotated = true},
      {.scope = CodedScope::kLayer,
       .coefficients = {0, 0, 0, 0, 33, 8},
       .gain = true,
       .bases = bases},
      {.scope = CodedScope::kHead, .coefficients = {0, 0, 0, 0, 22, 2, 8}, .bases = 4},
      {.scope = CodedScope::kLayer, .coefficients = {0, 0, 0, 0, 40, 11}, .bases = 1},
      {.scope = CodedScope::kLayer, .coefficients = {0, 0, 0, 0, 40, 11}}};
  KvPlan plan = coded_plan(model, forms[0]);
  plan.coded.clear();
  for (int layer = 0; layer < model.num_layers; ++layer) {
    for (const CodedBlock& block : coded_plan(model, forms[layer % 5]).coded) {
      if (block.first_layer == layer) {
        plan.coded.push_back(block);
      }
    }
  }
  plan.coded.front().coefficients[7] = 5;
  plan.check();
  return plan;
}

class GpuCodedScopes : public ::testing::TestWithParam<std::tuple<CodedScope, bool>> {};

TEST_P(GpuCodedScopes, StepsAreTheEngines) {
  const auto [scope, gain] = GetParam();
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  expect_gpu_steps(two_tiles(
      model,
      coded_plan(model, {.scope = scope, .coefficients = {0, 2, 3, 0, 25, 1, 2}, .gain = gain})));
}

INSTANTIATE_TEST_SUITE_P(All, GpuCodedScopes,
                         ::testing::Combine(::testing::ValuesIn(kScopes), ::testing::Bool()));

TEST(GpuCoded, ScopesMixLayerByLayer) {
  SyntheticCheckpoint model = tiny_gpu_model("llama");
  model.num_layers = 5;
  expect_gpu_steps(two_tiles(model, mixed_plan(model)));
}

struct GpuForm {
  const char* name;
  int bases;
  bool rotated;
};
void PrintTo(const GpuForm& form, std::ostream* to) { *to << form.name; }

// Keys apart from values. bases 0: a rotary pair each.
class GpuCodedForms : public ::testing::TestWithParam<std::tuple<GpuForm, CodedScope>> {
 protected:
  CodedPlanOptions options(const SyntheticCheckpoint& model) const {
    const auto [form, scope] = GetParam();
    const int pairs = static_cast<int>(model.head_dim / 2);
    return {.scope = scope,
            .coefficients = {0, 0, 0, 0, 0, 9, 12, 8, 6},
            .bases = form.bases == 0 ? pairs : form.bases,
            .rotated = form.rotated};
  }
};

TEST_P(GpuCodedForms, StepsAreTheEngines) {
  for (const bool gain : {false, true}) {
    const SyntheticCheckpoint model = tiny_gpu_model("llama");
    CodedPlanOptions coded = options(model);
    coded.gain = gain;
    expect_gpu_steps(two_tiles(model, coded_plan(model, coded)));
  }
}

TEST_P(GpuCodedForms, TakesLargerHeadsOfMoreQueries) {
  SyntheticCheckpoint model = tiny_gpu_model("qwen2");
  model.num_layers = 1;
  model.head_dim = 64;
  model.num_heads = 6;
  GpuCase test_case = two_tiles(model, coded_plan(model, options(model)));
  test_case.dtype = at::kBFloat16;
  expect_gpu_steps(test_case);
}

TEST_P(GpuCodedForms, ReadsWhatASlidingWindowShows) {
  SyntheticCheckpoint model = tiny_gpu_model("mistral");
  model.window = 20;
  expect_gpu_steps(two_tiles(model, coded_plan(model, options(model))));
}

TEST_P(GpuCodedForms, DecodesForAFurtherPrompt) {
  const SyntheticCheckpoint model = tiny_gpu_model("qwen3");
  GpuCase test_case = two_tiles(model, coded_plan(model, options(model)));
  test_case.longest = 75;
  test_case.turn = 40;
  expect_gpu_steps(test_case);
}

INSTANTIATE_TEST_SUITE_P(
    All, GpuCodedForms,
    ::testing::Combine(::testing::Values(GpuForm{"rotated", 0, true}, GpuForm{"pairs", 0, false},
                                         GpuForm{"blocks", 4, false}, GpuForm{"keys", 1, false}),
                       ::testing::Values(CodedScope::kHead, CodedScope::kLayer)));

TEST(GpuCoded, FormsMixLayerByLayer) {
  SyntheticCheckpoint model = tiny_gpu_model("llama");
  model.num_layers = 5;
  expect_gpu_steps(two_tiles(model, mixed_forms(model)));
}

TEST(GpuCoded, ReadsBiasesNormsAndBothKindsOfWeights) {
  for (const char* model_type : {"qwen2", "qwen3"}) {
    const SyntheticCheckpoint model = tiny_gpu_model(model_type);
    GpuCase test_case = two_tiles(model, coded_plan(model, {.scope = CodedScope::kHead}));
    test_case.weight_dtype = std::string(model_type) == "qwen2" ? "int8" : "";
    expect_gpu_steps(test_case);
  }
}

TEST(GpuCoded, MeetsCodesInFloat16WhereTheModelIsBFloat16) {
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  GpuCase test_case = two_tiles(model, coded_plan(model, {.scope = CodedScope::kLayer}));
  test_case.dtype = at::kBFloat16;
  expect_gpu_steps(test_case);
}

// A window begins behind the codes, and among them once there are two tiles.
TEST(GpuCoded, ReadsWhatASlidingWindowShows) {
  for (const char* model_type : {"mistral", "gemma2"}) {
    SyntheticCheckpoint model = tiny_gpu_model(model_type);
    model.window = 20;
    expect_gpu_steps(two_tiles(model, coded_plan(model, {.scope = CodedScope::kHead})));
  }
}

// Nothing of a head is stored but its mean.
TEST(GpuCoded, HasBlocksWithoutCoefficients) {
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  KvPlan plan = coded_plan(model, {.scope = CodedScope::kHead, .coefficients = {0, 0, 0, 0, 12}});
  for (std::size_t block = 1; block < plan.coded.size(); ++block) {
    plan.coded[block].coefficients = {};  // of one head, and of a whole layer
  }
  expect_gpu_steps(two_tiles(model, plan));
}

// The same exact rows become the same bytes.
void expect_cpu_bytes(const SyntheticCheckpoint& model, const KvPlan& plan) {
  const testing::OneThread one_thread;
  const testing::TemporaryDirectory directory;
  write_factored_checkpoint(directory.path(), model, plan);
  const Checkpoint checkpoint = Checkpoint::open(directory.path());
  testing::EmulatedExecutor executor;
  const GpuModel on_gpu = load_gpu_model(checkpoint, plan, at::kHalf, WeightType::kFloat, at::kCPU,
                                         executor.free_bytes());
  GpuCache cache(plan, at::kHalf, KvDtype::kFloat16, at::kCPU, 64, {110});
  read_gpu_prompt(on_gpu, cache, 0, testing::gpu_text(110, 3), {.chunk = 33}, executor);
  const Decoder decoder(checkpoint, at::kHalf);
  const CodedFactors factors = load_coded_factors(checkpoint, plan, decoder.config());
  const auto pool = std::make_shared<KvPool>(64);
  std::vector<CodedStore> stores;
  for (const CodedLayers& layers : coded_layers(plan)) {
    CodedStore& store = stores.emplace_back(plan, layers, StoreOptions{pool, at::kHalf});
    for (int index = 0; index < layers.num_layers; ++index) {
      const int layer = layers.first_layer + index;
      store.exact[static_cast<std::size_t>(index)].append(cache.keys(layer, 0, 0, 110),
                                                          cache.values(layer, 0, 0, 110));
    }
    code_tokens(decoder, plan, factors, store);
  }
  code_gpu_prompt(on_gpu, cache, 0, executor);
  ASSERT_EQ(cache.num_codes(0), 96);
  for (std::size_t i = 0; i < stores.size(); ++i) {
    for (std::size_t block = 0; block < stores[i].codes.size(); ++block) {
      const CodeTiles expected = stores[i].codes[block].tiles();
      const DeviceTiles tiles = cache.tiles()[i].block(block, 0);
      for (int tile = 0; tile < 3; ++tile) {
        EXPECT_EQ(std::memcmp(tile_at(tiles, 0, tile), expected.tile(tile),
                              static_cast<std::size_t>(expected.layout.bytes())),
                  0)
            << "store " << i << ", block " << block << ", tile " << tile;
      }
    }
  }
}

TEST(GpuCoded, BytesAreThoseOfTheCpu) {
  SyntheticCheckpoint model = tiny_gpu_model("qwen3");
  model.num_layers = 5;
  expect_cpu_bytes(model, mixed_plan(model));
  expect_cpu_bytes(model, mixed_forms(model));
}

// Generation, samples included: a sample's cache is a copy; forecasts bound what is taken.
TEST(GpuCoded, GeneratesTheEnginesTokens) {
  const testing::OneThread one_thread;
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  std::vector<KvPlan> plans{mixed_forms(model)};
  for (const CodedScope scope : kScopes) {
    plans.push_back(coded_plan(model, {.scope = scope, .gain = true}));
  }
  for (const int bases : {1, 4, 16}) {
    for (const CodedScope scope : {CodedScope::kHead, CodedScope::kLayer}) {
      plans.push_back(coded_plan(model, {.scope = scope, .bases = bases}));
    }
  }
  for (const CodedScope scope : {CodedScope::kHead, CodedScope::kLayer}) {
    plans.push_back(coded_plan(model, {.scope = scope, .bases = 16, .rotated = true}));
  }
  for (const KvPlan& plan : plans) {
    const testing::TemporaryDirectory directory;
    testing::write_factored_checkpoint(directory.path(), model, plan);
    const Engine::Ids prompts = {testing::gpu_text(69, 1), testing::gpu_text(6, 5)};
    GenerateOptions options;
    options.max_new_tokens = 7;
    options.num_samples = 2;
    const GpuEngine engine = testing::emulated_engine(directory.path());
    const auto [expected, result] =
        testing::expect_same_tokens(directory.path(), engine, prompts, options);
    ASSERT_EQ(result.sequences.size(), 4u);
    std::int64_t bytes = 0;
    for (std::size_t i = 0; i < 4; ++i) {
      std::int64_t planned = 0;
      for (const CodedLayers& layers : coded_layers(engine.plan())) {
        planned += coded_store_bytes(engine.plan(), layers, i < 2 ? 76 : 13, 32);
      }
      EXPECT_EQ(result.sequences[i].bytes.total(), planned);
      bytes += planned;
    }
    EXPECT_EQ(result.sequences[0].bytes.coded, expected.sequences[0].bytes.coded);
    EXPECT_LE(bytes, engine.kv_peak_bytes());
    EXPECT_LE(engine.kv_peak_bytes(),
              gpu_cache_bytes(engine.plan(), KvDtype::kFloat16, 32, {69, 69, 6, 6}, 7));
  }
}

// No token is exact behind a prompt of whole tiles.
TEST(GpuCoded, HasNoExactTokensWithoutSinksAndWindow) {
  const SyntheticCheckpoint model = tiny_gpu_model("llama");
  for (const bool codes_prompts : {false, true}) {
    for (const int bases : {0, 16}) {
      KvPlan plan = coded_plan(model, {.scope = CodedScope::kHead,
                                       .coefficients = {0, 0, 0, 0, 0, 0, 0, 12, 28},
                                       .bases = bases,
                                       .rotated = bases > 0,
                                       .codes_prompts = codes_prompts});
      plan.compression.sink_tokens = plan.compression.window_tokens = 0;
      GpuCase test_case{.model = model, .plan = plan, .prompt = 64, .longest = 68};
      test_case.turn = 28;
      expect_gpu_steps(test_case);
    }
  }
}

// Exact tokens of coded layers stay numbers.
TEST(GpuCoded, HasIntegersBesideCodes) {
  SyntheticCheckpoint model = tiny_gpu_model("llama");
  model.num_layers = 5;
  GpuCase test_case = two_tiles(model, mixed_plan(model));
  test_case.kv_dtype = KvDtype::kInt8;
  expect_gpu_steps(test_case);
}

}  // namespace
}  // namespace kvc
