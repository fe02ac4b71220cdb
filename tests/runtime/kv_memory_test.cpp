// What the operating system says of KV memory: it grows as the formula does, and comes back.
#include <gtest/gtest.h>
#include <malloc.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "runtime/store/element_type.h"
#include "runtime/store/kv_cache.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/testing/process_memory.h"
#include "tests/testing/test_tensors.h"

namespace kvc::kv_memory_test {
namespace {

using testing::random_ids;
using testing::SyntheticCheckpoint;

#if defined(__SANITIZE_ADDRESS__)
constexpr bool kMeasuresMemory = false;  // the sanitizer keeps its own
#else
constexpr bool kMeasuresMemory = true;
#endif

// Memory of this process that is in use once what malloc holds back is returned.
double resident_bytes() {
  ::malloc_trim(0);
  return static_cast<double>(testing::anonymous_bytes());
}

constexpr std::int64_t kTokens = 16384, kStep = 512, kLayers = 2, kHeads = 16, kChannels = 64;

StoreOptions store_options(KvDtype dtype) {
  StoreOptions options{.pool = std::make_shared<KvPool>(32), .dtype = at::kBFloat16};
  if (dtype == KvDtype::kFloat32 || dtype == KvDtype::kFloat16) {
    options.dtype = dtype == KvDtype::kFloat32 ? at::kFloat : at::kHalf;
  }
  options.codes = codes_of(dtype);
  return options;
}

// Tokens come in steps as from a prompt, and all but the last ones leave the window at its end.
void fill_plain(KvCache& cache, const at::Tensor& rows) {
  const CompressionSettings& policy = cache.plan().compression;
  for (int layer = 0; layer < cache.plan().num_layers(); ++layer) {
    if (cache.plan().layers[static_cast<std::size_t>(layer)] != KvSource::kPlain) {
      continue;  // fused of others, which have the rows
    }
    KeyValueStore& store = cache.plain_layer(layer);
    for (std::int64_t token = 0; token < kTokens; token += kStep) {
      store.append(rows, rows);
    }
    if (store.key_codes) {
      const std::int64_t most = kTokens - policy.sink_tokens - policy.window_tokens;
      store.quantise(policy.sink_tokens, most / kQuantisedTokens * kQuantisedTokens,
                     [](const at::Tensor& key, std::int64_t) { return key; });
    }
  }
}

// A third of the tokens merges, as chosen token by token.
void fill_group(KvCache& cache, const at::Tensor& rows, std::int64_t rank) {
  LatentStore& group = cache.group(0);
  for (std::int64_t token = 0; token < kTokens; token += kStep) {
    for (int layer = 0; layer < kLayers; ++layer) {
      group.append_pending(layer, rows, rows);
    }
  }
  const std::int64_t count =
      kTokens - cache.plan().compression.sink_tokens - cache.plan().compression.window_tokens;
  const at::Tensor positions = at::arange(count, at::kLong);
  const at::Tensor merge = positions.remainder(3) == 0;
  group.decide(merge, positions, testing::random_normal({(count + 2) / 3, rank}, 1));
  for (int layer = 0; layer < kLayers; ++layer) {
    KeyValueStore& store = group.unmerged(layer);
    if (store.key_codes) {
      store.quantise(0, store.num_exact() / kQuantisedTokens * kQuantisedTokens,
                     [](const at::Tensor& key, std::int64_t) { return key; });
    }
  }
}

// All layers in one block.
void fill_coded(KvCache& cache, const at::Tensor& rows) {
  CodedStore& store = cache.all_coded().front();
  const std::int64_t k = cache.plan().coded.front().num_coefficients();
  const at::Tensor steps = at::ones({k}, at::kFloat);
  const std::int64_t coded = tokens_in_blocks(cache.plan(), kTokens);
  for (std::int64_t token = 0; token < coded; token += kStep) {
    const at::Tensor z = testing::random_normal({std::min(kStep, coded - token), k}, 3);
    store.codes.front().append(z, steps);
  }
  const std::int64_t left = kTokens - coded;
  for (KeyValueStore& layer : store.exact) {
    layer.append(rows.narrow(0, 0, left), rows.narrow(0, 0, left));
  }
}

KvPlan coded_plan() {
  KvPlan plan = plain_plan(kLayers, kHeads, kChannels);
  plan.method = "coded";
  plan.layers.assign(kLayers, KvSource::kCoded);
  plan.coded = {{.first_layer = 0,
                 .num_layers = kLayers,
                 .head = -1,
                 .coefficients = {0, 30, 40, 100, 200, 60, 8, 4, 2},
                 .gain = true}};
  plan.check();
  return plan;
}

KvPlan group_plan(std::int64_t rank) {
  KvPlan plan = plain_plan(kLayers, kHeads, kChannels);
  plan.method = "commonkv";
  plan.layers.assign(kLayers, KvSource::kLatent);
  plan.groups = {{.first_layer = 0, .num_layers = kLayers, .rank = rank, .merge_weights = {}}};
  return plan;
}

// Two more layers, fused of the plain ones.
KvPlan fused_plan() {
  KvPlan plan = plain_plan(2 * kLayers, kHeads, kChannels);
  plan.method = "fusedkv";
  for (int layer = kLayers; layer < plan.num_layers(); ++layer) {
    plan.layers[static_cast<std::size_t>(layer)] = KvSource::kFused;
    plan.fused.push_back({.layer = layer, .key_sources = {0, 1}, .value_sources = {0, 1}});
  }
  plan.check();
  return plan;
}

TEST(KvMemory, GrowsAsTheFormulaSaysForEveryStoreAndType) {
  constexpr std::int64_t kRank = 256;
  const testing::OneThread one;
  const at::Tensor rows = testing::random_normal({kStep, kHeads, kChannels}, 2);
  const auto plain = std::make_shared<const KvPlan>(plain_plan(kLayers, kHeads, kChannels));
  const auto grouped = std::make_shared<const KvPlan>(group_plan(kRank));
  const auto coded = std::make_shared<const KvPlan>(coded_plan());
  const auto fused = std::make_shared<const KvPlan>(fused_plan());
  const auto fill = [&](KvCache& cache) {
    !cache.plan().coded.empty()   ? fill_coded(cache, rows)
    : cache.plan().groups.empty() ? fill_plain(cache, rows)
                                  : fill_group(cache, rows, kRank);
  };
  for (const KvDtype dtype : {KvDtype::kFloat32, KvDtype::kFloat16, KvDtype::kBFloat16,
                              KvDtype::kInt8, KvDtype::kInt4, KvDtype::kInt2}) {
    for (const auto& plan : {plain, grouped, coded, fused}) {
      {
        KvCache first(plan, store_options(dtype));  // what only the first time allocates
        fill(first);
      }
      const StoreOptions options = store_options(dtype);
      KvCache cache(plan, options);
      const double before = resident_bytes();
      fill(cache);
      const auto expected = static_cast<double>(
          plan_bytes(*plan, kTokens, cache.tokens(), dtype, options.pool->page_tokens()));
      EXPECT_EQ(static_cast<double>(options.pool->allocated_bytes()), expected);
      if (kMeasuresMemory) {
        EXPECT_NEAR(resident_bytes() - before, expected, 0.03 * expected)
            << to_string(dtype) << " " << plan->method;
      }
    }
  }
}

// 64 sequences at a time grow and end at random: 600 prompts, or for KVC_SOAK_SECONDS.
TEST(KvMemory, ReturnsWhenManySequencesCameAndWent) {
  const testing::OneThread one;
  const char* seconds = std::getenv("KVC_SOAK_SECONDS");
  const SyntheticCheckpoint model{.num_kv_heads = 4, .head_dim = 128};
  const auto engine = testing::load_plain(model, testing::cache_of("int8"));
  std::mt19937 random(1);
  const auto soak = [&](int prompts) {
    std::vector<Sequence> sequences;
    const auto start = std::chrono::steady_clock::now();
    const auto is_over = [&](int done) {
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      return done >= prompts && (seconds == nullptr || taken.count() >= std::stod(seconds));
    };
    for (int done = 0; !is_over(done); ++done) {
      if (sequences.size() < 64) {
        sequences.push_back(engine->new_sequence());
      }
      Sequence& sequence = sequences[random() % sequences.size()];
      const auto ids = random_ids(1, 1 + static_cast<std::int64_t>(random() % 60), 96, random());
      engine->prefill({&sequence}, ids, Engine::Rows::kLast);
      if (random() % 8 == 0 || sequence.num_tokens() > 600) {
        std::swap(sequences[random() % sequences.size()], sequences.back());
        sequences.pop_back();
      }
    }
  };
  soak(300);
  EXPECT_EQ(engine->pool().num_slabs(), 0);
  const double before = resident_bytes();
  soak(600);
  EXPECT_EQ(engine->pool().num_blocks(), 0);
  EXPECT_EQ(engine->pool().num_slabs(), 0);
  const auto peak = static_cast<double>(engine->pool().peak_bytes());
  EXPECT_GT(peak, 16 << 20);
  if (kMeasuresMemory) {
    EXPECT_LT(resident_bytes() - before, peak / 8 + (4 << 20));
  }
}

}  // namespace
}  // namespace kvc::kv_memory_test
