#include "model/kernels/causal_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "model/kernels/cpu_features.h"
#include "model/kernels/element.h"
#include "tests/model/kernels/random_values.h"

namespace kvc {
namespace {

using Numbers = std::vector<std::uint16_t>;

struct Case {
  std::int64_t num_queries, num_keys, num_heads, num_kv_heads, head_dim, value_dim;
  std::int64_t window = 0;
  float softcap = 0;
};

void PrintTo(const Case& x, std::ostream* out) {
  *out << x.num_queries << " of " << x.num_keys << " tokens, heads " << x.num_heads << "/"
       << x.num_kv_heads << " x " << x.head_dim << "/" << x.value_dim << ", window " << x.window
       << ", cap " << x.softcap;
}

class Inputs {
 public:
  // Tokens lie `gap` numbers further apart than they are wide.
  explicit Inputs(const Case& shape, std::int64_t gap = 0)
      : query_(random_bfloat16(shape.num_queries * (shape.num_heads * shape.head_dim + gap), 1)),
        key_(random_bfloat16(shape.num_keys * (shape.num_kv_heads * shape.head_dim + gap), 2)),
        value_(random_bfloat16(shape.num_keys * (shape.num_kv_heads * shape.value_dim + gap), 3)) {
    params_ = {.query = query_.data(),
               .key = key_.data(),
               .value = value_.data(),
               .query_stride = shape.num_heads * shape.head_dim + gap,
               .key_stride = shape.num_kv_heads * shape.head_dim + gap,
               .value_stride = shape.num_kv_heads * shape.value_dim + gap,
               .num_queries = shape.num_queries,
               .num_keys = shape.num_keys,
               .num_heads = shape.num_heads,
               .num_kv_heads = shape.num_kv_heads,
               .head_dim = shape.head_dim,
               .value_dim = shape.value_dim,
               .window = shape.window,
               .scale = 1.5f / std::sqrt(static_cast<float>(shape.head_dim)),
               .softcap = shape.softcap};
  }
  CausalAttentionParams& params() { return params_; }

 private:
  static Numbers random_bfloat16(std::int64_t count, unsigned seed) {
    Numbers numbers;
    for (const float x : testing::random_values(count, seed)) {
      numbers.push_back(bfloat16_of(x));
    }
    return numbers;
  }

  Numbers query_, key_, value_;
  CausalAttentionParams params_;
};

template <class Task>
Numbers attend(const CausalAttentionParams& params, const Task& task) {
  Numbers output(static_cast<std::size_t>(params.num_queries * params.num_heads * params.value_dim),
                 0x7FC0);
  for (std::int64_t i = 0; i < causal_attention_tasks(params); ++i) {
    task(params, i, output.data());
  }
  return output;
}

// Weights and outputs have 8 bits: both are rounded by at most 2^-8 of themselves.
void expect_close(const Numbers& actual, const Numbers& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  double worst = 0, square = 0, error = 0;
  for (std::size_t i = 0; i < actual.size(); ++i) {
    const double x = float_of_bfloat16(actual[i]), y = float_of_bfloat16(expected[i]);
    worst = std::max(worst, std::fabs(x - y) - 0x1p-7 * std::fabs(y));
    square += y * y;
    error += (x - y) * (x - y);
  }
  EXPECT_LT(worst, 4e-3);
  EXPECT_LT(std::sqrt(error / square), 4e-3);
}

class CausalAttentionKernel : public ::testing::TestWithParam<Case> {};

TEST_P(CausalAttentionKernel, MatchesReference) {
  for (const std::int64_t gap : {0, 5}) {
    Inputs inputs(GetParam(), gap);
    expect_close(attend(inputs.params(), causal_attention_task),
                 attend(inputs.params(), causal_attention_task_reference));
  }
}

TEST_P(CausalAttentionKernel, GivesAQueryTheSameAmongOthers) {
  Inputs inputs(GetParam());
  CausalAttentionParams& params = inputs.params();
  const Numbers all = attend(params, causal_attention_task);
  const std::int64_t left_out = params.num_queries / 3;
  params.query += left_out * params.query_stride;
  params.num_queries -= left_out;
  const Numbers some = attend(params, causal_attention_task);
  EXPECT_EQ(some, Numbers(all.end() - static_cast<std::ptrdiff_t>(some.size()), all.end()));
}

TEST_P(CausalAttentionKernel, GivesTheSameForAnyNumberOfThreads) {
  Inputs inputs(GetParam());
  CausalAttentionParams& params = inputs.params();
  const Numbers expected = attend(params, causal_attention_task);
  for (const std::int64_t threads : {2, 3, 64}) {
    params.num_threads = threads;
    EXPECT_EQ(attend(params, causal_attention_task), expected) << threads;
  }
}

TEST(CausalAttentionKernel, GivesEveryThreadSomeOfFewQueries) {
  Inputs inputs({64, 600, 4, 1, 16, 16});
  EXPECT_EQ(causal_attention_tasks(inputs.params()), 1);
  inputs.params().num_threads = 2;
  EXPECT_EQ(causal_attention_tasks(inputs.params()), 2);
  inputs.params().num_threads = 64;  // every task reads all keys anew
  EXPECT_EQ(causal_attention_tasks(inputs.params()), 4);
}

INSTANTIATE_TEST_SUITE_P(
    Shapes, CausalAttentionKernel,
    ::testing::Values(Case{1, 1, 1, 1, 2, 1}, Case{37, 37, 4, 2, 24, 24},
                      Case{5, 600, 7, 1, 64, 64}, Case{300, 700, 6, 2, 64, 80},
                      Case{257, 257, 2, 2, 128, 128}, Case{90, 300, 4, 4, 192, 128},
                      Case{300, 700, 6, 2, 96, 64, 50}, Case{200, 900, 2, 1, 32, 32, 256},
                      Case{40, 40, 2, 1, 32, 32, 1}, Case{100, 400, 6, 6, 128, 128, 0, 2.0f},
                      Case{30, 300, 16, 1, 256, 256, 100, 0.5f},
                      Case{20, 30, 2, 1, 7, 9}));  // an odd width is the reference's

TEST(CausalAttentionKernel, WithoutTheInstructionsIsTheReference) {
  Inputs inputs({20, 50, 4, 2, 16, 16});
  const Numbers expected = attend(inputs.params(), causal_attention_task_reference);
  allow_avx512_bf16(false);
  EXPECT_FALSE(causal_attention_is_fast(16));
  const Numbers actual = attend(inputs.params(), causal_attention_task);
  allow_avx512_bf16(true);
  EXPECT_EQ(actual, expected);
}

// Two tokens with scores 0 and ln 3: the second's weight is 3/4; the first query sees itself only.
TEST(CausalAttentionKernel, FollowsTheDefinition) {
  const auto of = [](std::vector<float> x) {
    Numbers numbers;
    for (const float value : x) {
      numbers.push_back(bfloat16_of(value));
    }
    return numbers;
  };
  const Numbers query = of({1, 0, 1, 0}), key = of({0, 0, 1, 0}), value = of({4, 8});
  CausalAttentionParams params{.query = query.data(),
                               .key = key.data(),
                               .value = value.data(),
                               .query_stride = 2,
                               .key_stride = 2,
                               .value_stride = 1,
                               .num_queries = 2,
                               .num_keys = 2,
                               .num_heads = 1,
                               .num_kv_heads = 1,
                               .head_dim = 2,
                               .value_dim = 1,
                               .scale = std::log(3.0f)};
  EXPECT_EQ(attend(params, causal_attention_task), of({4, 7}));
  EXPECT_EQ(attend(params, causal_attention_task_reference), of({4, 7}));
  params.window = 1;
  EXPECT_EQ(attend(params, causal_attention_task), of({4, 8}));
}

}  // namespace
}  // namespace kvc
