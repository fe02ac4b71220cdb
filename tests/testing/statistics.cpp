#include "tests/testing/statistics.h"

#include <string_view>

#include "core/hdf5.h"
#include "tests/testing/synthetic_checkpoint.h"
#include "tests/testing/tensor_matchers.h"

namespace kvc::testing {

TokenSet token_set(const std::vector<std::vector<std::int64_t>>& sequences) {
  TokenSet tokens;
  tokens.sequences = sequences;
  tokens.tokenizer_hash = "none";
  return tokens;
}

at::Tensor read_dataset(const std::filesystem::path& path, const std::string& dataset) {
  const Hdf5Reader file(path);
  const std::vector<std::int64_t> shape = file.shape(dataset);
  return at::tensor(file.doubles(dataset, shape), at::kDouble).reshape(shape);
}

::testing::AssertionResult equal_to(const at::Tensor& actual, const at::Tensor& expected,
                                    double relative) {
  return tensors_close(actual, expected, relative * expected.abs().max().item<double>());
}

namespace {

Checkpoint checkpoint_of(const char* model_type, const std::filesystem::path& directory) {
  SyntheticCheckpoint synthetic;
  const bool yarn = std::string_view(model_type) == "llama_yarn";
  synthetic.model_type = yarn ? "llama" : model_type;
  synthetic.rope_type = yarn ? "yarn" : "default";
  write_synthetic_checkpoint(directory, synthetic);
  return Checkpoint::open(directory);
}

}  // namespace

StatisticsTest::StatisticsTest() : checkpoint_(checkpoint_of(GetParam(), directory_ / "model")) {}

}  // namespace kvc::testing
