#include "tests/runtime/gpu/gpu_fixture.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "runtime/gpu/gpu_coding.h"
#include "runtime/gpu/gpu_compression.h"
#include "runtime/gpu/gpu_prompt.h"
#include "runtime/gpu/gpu_step.h"
#include "runtime/kernels/code_tiles.h"
#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/emulated_executor.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"

namespace kvc::testing {
namespace {

// Where the case's checkpoint lies, in `directory` or already.
std::filesystem::path checkpoint_of(const GpuCase& test_case, const TemporaryDirectory& directory) {
  if (!test_case.checkpoint.empty()) {
    return test_case.checkpoint;
  }
  if (test_case.plan) {
    write_factored_checkpoint(directory.path(), test_case.model, *test_case.plan);
  } else {
    write_synthetic_checkpoint(directory.path(), test_case.model);
  }
  return directory.path();
}

// Of 16-bit activations, beside float32: some roundings of the largest logit.
double tolerance_for(const GpuCase& test_case, const at::Tensor& exact) {
  return (test_case.dtype == at::kHalf ? 4e-3 : 3.2e-2) *
         std::max(5.0, exact.abs().max().item<double>());
}

KvDtype kv_dtype_of(const GpuCase& test_case) {
  return test_case.dtype == at::kHalf ? test_case.kv_dtype : KvDtype::kBFloat16;
}

// The engine whose cache holds what the GPU's does, so that as many tokens merge.
EngineOptions reference_options(const GpuCase& test_case) {
  EngineOptions options;
  options.dtype = "float32";
  options.kv_dtype = to_string(kv_dtype_of(test_case));
  options.page_tokens = kScaledRows;
  options.weight_dtype = test_case.weight_dtype;
  return options;
}

// What the codes of a sequence's first `count` tokens stand for.
at::Tensor coefficients_on_gpu(const GpuTiles& tiles, std::size_t block, std::size_t sequence,
                               std::int64_t count, const at::Tensor& steps,
                               const CodedBlock& spec) {
  const TileLayout layout = tile_layout(spec);
  const std::int64_t width = layout.num_coefficients();
  at::Tensor z = at::empty({count, width}, at::kFloat);
  const DeviceTiles stored = tiles.block(block, sequence);
  for (std::int64_t tile = 0; tile < count / kTileTokens && width > 0; ++tile) {
    decode_tile(layout, tile_at(stored, 0, static_cast<int>(tile)), steps.const_data_ptr<float>(),
                z.mutable_data_ptr<float>() + tile * kTileTokens * width);
  }
  return z;
}

// Two sequences, as the engine and as the GPU's runtime read them.
class TwoSequences {
 public:
  explicit TwoSequences(const GpuCase& test_case)
      : test_case_(test_case),
        checkpoint_(Checkpoint::open(checkpoint_of(test_case, directory_))),
        reference_(Engine::load(checkpoint_.directory(), reference_options(test_case))),
        executor_(std::int64_t{1} << 40),
        model_(load_gpu_model(checkpoint_, reference_.plan(), test_case.dtype,
                              parse_weight_type(test_case.weight_dtype), at::kCPU,
                              executor_.free_bytes())),
        sequences_(sequences_of(test_case)),
        cache_(reference_.plan(), test_case.dtype, kv_dtype_of(test_case), at::kCPU, kScaledRows,
               {test_case.longest, test_case.longest}),
        step_(model_, cache_, sequences_, executor_) {}

  void expect_prompts() { expect_prompts(sequences_.texts); }

  // Another prompt behind what steps have fed, for which, and for steps, the cache grows.
  void expect_turn() {
    const std::vector<Row> added{gpu_text(test_case_.turn, 5), gpu_text(7, 17)};
    const std::int64_t longest = test_case_.longest + test_case_.turn + test_case_.num_steps;
    for (std::size_t i = 0; i < 2; ++i) {
      cache_.grow(i, longest);
      sequences_.texts[i].insert(sequences_.texts[i].end(), added[i].begin(), added[i].end());
    }
    sequences_.capacity = longest + 1;
    step_ = GpuStep(model_, cache_, sequences_, executor_);
    expect_prompts(added);
  }

  void expect_steps() {
    for (int step = 0; step < test_case_.num_steps; ++step) {
      expect_step(step);
    }
    for (std::size_t i = 0; i < 2; ++i) {
      sequences_.texts[i].insert(sequences_.texts[i].end(), fed_[i].begin(), fed_[i].end());
      fed_[i].clear();
    }
  }

 private:
  static StepSequences sequences_of(const GpuCase& test_case) {
    StepSequences sequences;
    sequences.texts = test_case.texts.empty()
                          ? std::vector<Row>{gpu_text(test_case.prompt, 3), gpu_text(9, 11)}
                          : test_case.texts;
    sequences.seeds = {1, 2};
    sequences.capacity = test_case.longest + 1;
    return sequences;
  }

  void expect_step(int number) {
    const at::Tensor ids = step_.state().ids.to(at::kLong);
    step_.rebuild(model_, cache_, sequences_, executor_);  // there may be another basis
    executor_.run(step_.program());
    cache_.add_token();
    compress_gpu_blocks(model_, cache_, lengths(number + 1));
    code_gpu_blocks(model_, cache_, executor_);
    for (std::size_t s = 0; s < 2; ++s) {
      const auto sequence = static_cast<std::int64_t>(s);
      const auto id = ids[sequence].item<std::int64_t>();
      fed_[s].push_back(id);
      const at::Tensor exact =
          reference_.extend({&expected_[s]}, {{id}}, Engine::Rows::kLast).front();
      EXPECT_TRUE(tensors_close(step_.state().logits.narrow(0, sequence, 1), exact,
                                tolerance_for(test_case_, exact)))
          << "sequence " << s << ", step " << number;
      EXPECT_EQ(step_.state().ids[sequence].item<std::int64_t>(),
                step_.state().logits[sequence].argmax().item<std::int64_t>());
      expect_cache(s);
    }
  }

  void expect_prompts(const std::vector<Row>& added) {
    for (std::size_t i = 0; i < 2; ++i) {
      if (expected_.size() == i) {
        expected_.push_back(reference_.new_sequence());
      }
      const std::int64_t num_before = expected_[i].num_tokens();
      const at::Tensor exact =
          reference_.prefill({&expected_[i]}, {added[i]}, Engine::Rows::kAll).front();
      const at::Tensor logits =
          read_gpu_prompt(model_, cache_, i, added[i],
                          {.chunk = 12, .all_logits = true, .num_before = num_before}, executor_);
      EXPECT_TRUE(tensors_close(logits, exact, tolerance_for(test_case_, exact)))
          << "prompt " << i << " behind " << num_before;
      step_.state().logits[static_cast<std::int64_t>(i)].copy_(logits[-1]);
      code_gpu_prompt(model_, cache_, i, executor_);
      expect_cache(i);
    }
    executor_.run(step_.sampling());
  }

  std::vector<std::int64_t> lengths(std::int64_t more) const {
    std::vector<std::int64_t> lengths;
    for (const auto& text : sequences_.texts) {
      lengths.push_back(static_cast<std::int64_t>(text.size()) + more);
    }
    return lengths;
  }

  void expect_cache(std::size_t sequence) const {
    const KvPlan& plan = reference_.plan();
    const std::int64_t capacity = cache_.capacity(sequence);
    std::int64_t bytes =
        plan.num_layers_from(KvSource::kPlain) *
        (cache_.has_integers() ? coded_layer_bytes(plan, capacity, cache_.kv_dtype(), kScaledRows)
                               : plain_layer_bytes(plan, capacity, cache_.kv_dtype(), kScaledRows));
    const std::int64_t num_tokens = expected_[sequence].num_tokens();
    EXPECT_EQ(cache_.num_codes(sequence),
              plan.coded.empty() ? quantised_tokens(plan, num_tokens, cache_.kv_dtype())
                                 : tokens_in_blocks(plan, num_tokens));
    for (const CodedLayers& layers : coded_layers(plan)) {
      bytes += coded_store_bytes(plan, layers, capacity, kScaledRows);
    }
    for (std::size_t store = 0; store < cache_.tiles().size(); ++store) {
      expect_codes(store, sequence);
    }
    const std::vector<GroupTokens> groups = expected_[sequence].cache().tokens();
    for (int group = 0; group < static_cast<int>(plan.groups.size()); ++group) {
      const GpuGroup& store = cache_.group(group);
      const GroupTokens tokens = store.tokens(sequence),
                        exact = groups[static_cast<std::size_t>(group)];
      if (store.decides()) {
        EXPECT_EQ(tokens.merged, exact.merged) << "group " << group;
        EXPECT_EQ(tokens.unmerged, exact.unmerged) << "group " << group;
        EXPECT_EQ(tokens.pending, exact.pending) << "group " << group;
        EXPECT_EQ(tokens.bases, exact.bases) << "group " << group;
      }
      bytes += group_bytes(plan, group, store.reserved(sequence), KvDtype::kFloat16, kScaledRows);
    }
    EXPECT_EQ(cache_.bytes(sequence).total(), bytes);
  }

  // Coefficients whose levels differ by more than rounding makes of neighbours are few: gains of nearly equal error.
  void expect_codes(std::size_t store, std::size_t sequence) const {
    const GpuTiles& tiles = cache_.tiles()[store];
    const CodedStore& exact = expected_[sequence].cache().coded(tiles.layers.first_layer);
    const std::int64_t count = cache_.num_codes(sequence);
    for (std::size_t block = 0; block < exact.codes.size() && count > 0; ++block) {
      const CodedBlock& spec =
          reference_.plan().coded[static_cast<std::size_t>(tiles.layers.first_block) + block];
      const at::Tensor steps = model_.coded[store].encoder.steps(block);
      const at::Tensor difference =
          (coefficients_on_gpu(tiles, block, sequence, count, steps, spec) -
           exact.codes[block].coefficients(0, count, steps))
              .abs();
      const auto beyond = (difference > 1.01 * steps).sum().item<std::int64_t>();
      EXPECT_LE(beyond, spec.gain ? difference.numel() / 20 : 0)
          << "store " << store << ", block " << block;
    }
  }

  GpuCase test_case_;
  OneThread one_thread_;
  TemporaryDirectory directory_;
  Checkpoint checkpoint_;
  Engine reference_;
  EmulatedExecutor executor_;
  GpuModel model_;
  StepSequences sequences_;
  GpuCache cache_;
  GpuStep step_;
  std::vector<Sequence> expected_;
  std::vector<Row> fed_ = std::vector<Row>(2);  // by the steps of the turn
};

}  // namespace

SyntheticCheckpoint tiny_gpu_model(const std::string& model_type) {
  SyntheticCheckpoint model;
  model.model_type = model_type;
  model.num_layers = 2;
  model.hidden_size = 64;
  model.head_dim = 32;
  model.dtype = "float16";
  return model;
}

Row gpu_text(std::int64_t length, std::int64_t seed) {
  Row ids;
  for (std::int64_t i = 0; i < length; ++i) {
    ids.push_back((seed + 7 * i + i * i) % 96);
  }
  return ids;
}

std::unique_ptr<StepExecutor> emulated(std::int64_t free_bytes) {
  return std::make_unique<EmulatedExecutor>(free_bytes);
}

void expect_gpu_steps(const GpuCase& test_case) {
  TwoSequences sequences(test_case);
  sequences.expect_prompts();
  sequences.expect_steps();
  if (test_case.turn > 0) {
    sequences.expect_turn();
    sequences.expect_steps();
  }
}

GenerateOptions options_of(std::int64_t new_tokens) {
  GenerateOptions options;
  options.max_new_tokens = new_tokens;
  return options;
}

TinyGpuModel::TinyGpuModel() {
  write_synthetic_checkpoint(directory_.path(), tiny_gpu_model("llama"));
}

GpuEngine emulated_engine(const std::filesystem::path& checkpoint, const std::string& kv_dtype) {
  EngineOptions options;
  options.dtype = "float16";
  options.kv_dtype = kv_dtype;
  return GpuEngine::load(checkpoint, options, emulated());
}

Generations expect_same_tokens(const std::filesystem::path& checkpoint, const GpuEngine& engine,
                               const Engine::Ids& prompts, const GenerateOptions& options) {
  EngineOptions wide;
  // What leaves a cache depends on roundings: a policy's tokens are those of the same type.
  wide.dtype = engine.policy().is_full() ? "float32" : "float16";
  wide.kv_dtype = to_string(engine.kv_dtype());
  wide.page_tokens = 32;
  wide.policy = engine.policy();
  Generations both{generate(Engine::load(checkpoint, wide), prompts, options),
                   engine.generate(prompts, options)};
  EXPECT_EQ(both.result.sequences.size(), both.expected.sequences.size());
  for (std::size_t i = 0;
       i < std::min(both.result.sequences.size(), both.expected.sequences.size()); ++i) {
    EXPECT_EQ(both.result.sequences[i].tokens, both.expected.sequences[i].tokens) << i;
  }
  return both;
}

}  // namespace kvc::testing
