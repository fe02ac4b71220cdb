// Whole steps of tiny models in the emulator, beside the CPU's engine.
#pragma once

#include <gtest/gtest.h>

#include <cstdint>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "runtime/generate.h"
#include "runtime/gpu/gpu_engine.h"
#include "runtime/gpu/step_executor.h"
#include "tests/runtime/engine_fixture.h"
#include "tests/runtime/kernels/cuda/emulated_backend.h"
#include "tests/testing/temporary_directory.h"

namespace kvc::testing {

// Two layers of float16, heads of 32 channels.
SyntheticCheckpoint tiny_gpu_model(const std::string& model_type);
Row gpu_text(std::int64_t length, std::int64_t seed);
std::unique_ptr<StepExecutor> emulated(std::int64_t free_bytes = std::int64_t{1} << 40);
// An engine in float16, whose cache's type may be another.
GpuEngine emulated_engine(const std::filesystem::path& checkpoint,
                          const std::string& kv_dtype = {});
GenerateOptions options_of(std::int64_t new_tokens);
// One of these in a directory.
class TinyGpuModel : public ::testing::Test {
 protected:
  TinyGpuModel();

  OneThread one_thread_;
  TemporaryDirectory directory_;
};
struct GpuCase {
  SyntheticCheckpoint model{};
  std::optional<KvPlan> plan{};
  std::int64_t prompt = 31, longest = 40;  // tokens of the longer sequence
  std::string weight_dtype{};
  int num_steps = 4;
  KvDtype kv_dtype = KvDtype::kFloat16;
  std::filesystem::path checkpoint{};  // in the place of model and plan
  std::vector<Row> texts{};            // two, in the place of made-up ones
  at::ScalarType dtype = at::kHalf;    // or bfloat16, of the GPU's model and cache
  // Tokens of a further prompt behind the steps, which as many steps follow; 0: none.
  std::int64_t turn = 0;
};

// Logits of prompts and of every step beside the CPU engine's in float32, which reads the same tokens: after 31 tokens
// the step crosses a page. What latent groups hold is what the engine's do, codes are the engine's up to what 16 bits
// round, and all takes the formula's bytes.
void expect_gpu_steps(const GpuCase& test_case);

// What the CPU's engine generates, in float32 with a cache of 16 bits or of `engine`'s type, or under the same policy in
// float16, and what `engine` does: the same tokens.
struct Generations {
  GenerateResult expected, result;
};
Generations expect_same_tokens(const std::filesystem::path& checkpoint, const GpuEngine& engine,
                               const Engine::Ids& prompts, const GenerateOptions& options);

}  // namespace kvc::testing
