// Steps of plain and fused layers: prompts through LibTorch on the CPU, steps in the emulator.
#include <gtest/gtest.h>

#include "tests/runtime/factored_checkpoint.h"
#include "tests/runtime/gpu/gpu_fixture.h"

namespace kvc {
namespace {

using testing::expect_gpu_steps;
using testing::GpuCase;
using testing::SyntheticCheckpoint;
using testing::tiny_gpu_model;

TEST(GpuStep, IsTheEnginesForLlama) { expect_gpu_steps({tiny_gpu_model("llama")}); }

TEST(GpuStep, IsTheEnginesWithBiasesAndTiedEmbeddings) {
  SyntheticCheckpoint model = tiny_gpu_model("qwen2");
  model.tied_embeddings = true;
  expect_gpu_steps({model});
}

TEST(GpuStep, IsTheEnginesWithHeadNorms) { expect_gpu_steps({tiny_gpu_model("qwen3")}); }

TEST(GpuStep, IsTheEnginesWithSandwichNormsWindowsAndSoftcaps) {
  expect_gpu_steps({tiny_gpu_model("gemma2")});
}

TEST(GpuStep, IsTheEnginesUnderASlidingWindow) {
  SyntheticCheckpoint model = tiny_gpu_model("mistral");
  model.window = 8;
  expect_gpu_steps({model});
}

TEST(GpuStep, IsTheEnginesOfInt8Weights) {
  GpuCase test_case{tiny_gpu_model("llama")};
  test_case.weight_dtype = "int8";
  test_case.model.tied_embeddings = true;
  expect_gpu_steps(test_case);
}

TEST(GpuStep, IsTheEnginesForFusedLayers) {
  SyntheticCheckpoint model = tiny_gpu_model("llama");
  model.num_layers = 4;
  for (const int sources : {1, 2}) {
    expect_gpu_steps({model, testing::fused_upper_plan(model, FusionForm::kChannel, sources)});
  }
}

// A block leaves the exact window at the prompt's end, and another while the sixth token is fed; mistral's own window
// then begins among the codes.
TEST(GpuStep, IsTheEnginesWithIntegerCaches) {
  for (const KvDtype kv_dtype : {KvDtype::kInt8, KvDtype::kInt4}) {
    for (const char* model_type : {"llama", "qwen3", "mistral"}) {
      SyntheticCheckpoint model = tiny_gpu_model(model_type);
      model.window = 150;
      expect_gpu_steps(
          {.model = model, .prompt = 190, .longest = 200, .num_steps = 7, .kv_dtype = kv_dtype});
    }
  }
}

}  // namespace
}  // namespace kvc
