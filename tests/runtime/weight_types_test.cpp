// int8 weights through the engine.
#include <gtest/gtest.h>

#include "tests/runtime/engine_fixture.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::cached_logits;
using testing::load_plain;
using testing::SyntheticCheckpoint;
using testing::tensors_close;

class Int8Weights : public ::testing::TestWithParam<bool> {
 protected:
  SyntheticCheckpoint model() const {
    return {.hidden_size = 72, .vocab_size = 320, .tied_embeddings = GetParam()};
  }
  testing::OneThread one_;
};

EngineOptions int8() {
  EngineOptions options;
  options.weight_dtype = "int8";
  return options;
}

TEST_P(Int8Weights, GiveNearlyTheSameLogitsFromLess) {
  const auto exact = load_plain(model()), engine = load_plain(model(), int8());
  const auto ids = testing::random_ids(1, 60, 320, 3).front();
  const at::Tensor expected = cached_logits(*exact, ids, 60, 1);
  const at::Tensor actual = cached_logits(*engine, ids, 60, 1);
  EXPECT_TRUE(tensors_close(actual, expected, 0.03 * testing::spread(expected)));
  EXPECT_FALSE(tensors_close(actual, expected, 1e-6 * testing::spread(expected)));
  EXPECT_LT(engine->weight_bytes(), 0.7 * static_cast<double>(exact->weight_bytes()));
}

// Few rows are multiplied with the codes, many with weights turned into floats.
TEST_P(Int8Weights, DoNotDependOnHowTheTextIsCut) {
  const auto engine = load_plain(model(), int8());
  const auto ids = testing::random_ids(1, 90, 320, 4).front();
  const at::Tensor whole = cached_logits(*engine, ids, 90, 1);
  for (const std::size_t chunk : {1, 7, 40}) {
    EXPECT_TRUE(
        tensors_close(cached_logits(*engine, ids, 3, chunk), whole, 1e-3 * testing::spread(whole)))
        << chunk;
  }
}

INSTANTIATE_TEST_SUITE_P(Embeddings, Int8Weights, ::testing::Values(false, true),
                         [](const auto& row) { return row.param ? "Tied" : "Apart"; });

TEST(WeightDtype, IsCheckedByTheEngine) {
  EngineOptions options;
  options.weight_dtype = "int3";
  EXPECT_THROW(load_plain({}, options), UsageError);
}

}  // namespace
}  // namespace kvc
