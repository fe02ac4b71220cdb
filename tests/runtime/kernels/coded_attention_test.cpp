#include "runtime/kernels/coded_attention.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/kernels/cpu_features.h"
#include "tests/runtime/kernels/coded_inputs.h"
#include "tests/runtime/kernels/kernel_inputs.h"
#include "tests/runtime/kernels/runtime_targets.h"

namespace kvc {
namespace {

using testing::CodedForm;
using testing::CodedInputs;
using testing::layout_of;
using testing::Partial;
using testing::partials_close;
using testing::random_numbers;
using testing::with_best_and_every_target;

// What values are made of: sums of levels, which codes stand for, instead of codes.
Partial as_levels(const TileLayout& layout, Partial partial) {
  float* sums = partial.output.data();
  for (std::size_t head = 0; head < partial.max.size(); ++head) {
    const float gains = sums[layout.num_coefficients()];
    for (int bits = kWidestCode; bits >= 1; --bits) {
      for (std::int64_t i = 0; i < layout.coefficients[bits]; ++i, ++sums) {
        *sums += first_level(bits) * gains;
      }
    }
    ++sums;
  }
  return partial;
}

// Form, coefficients of keys from width 1 on, gain, head_dim, query heads per KV head.
using Shape = std::tuple<CodedForm, std::vector<std::int64_t>, bool, std::int64_t, std::int64_t>;

class CodedAttention : public ::testing::TestWithParam<Shape> {};

// The first token's keys have something besides.
TEST_P(CodedAttention, MatchesReferenceForTheFirstToken) {
  const auto [form, widths, gain, head_dim, heads_per_kv] = GetParam();
  constexpr std::int64_t kKvHeads = 2;
  CodedInputs inputs(form, layout_of(widths, gain), kKvHeads, head_dim);
  const std::int64_t num_heads = kKvHeads * heads_per_kv;
  const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
  const std::vector<float> offset = random_numbers(kKvHeads * head_dim, 4);
  std::vector<float> scores(static_cast<std::size_t>(num_heads));
  CodedSegment segment = inputs.segment();
  segment.first_token = {offset.data(), scores.data()};
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = num_heads,
                               .num_kv_heads = kKvHeads,
                               .head_dim = head_dim,
                               .scale = 0.2f / std::sqrt(static_cast<float>(head_dim))};
  params.raw_keys.rope = inputs.rope();
  const std::int64_t width = segment.values.layout.num_coefficients() + 1;
  for (const float softcap : {0.0f, 3.0f}) {
    params.softcap = softcap;
    Partial whole(num_heads, width), others(num_heads, width);
    coded_attention_partial_reference(params, segment, 0, 70, whole.view());
    const std::vector<float> expected = scores;
    coded_attention_partial_reference(params, segment, 1, 70, others.view());
    EXPECT_EQ(scores, expected);
    for (std::size_t head = 0; head < scores.size(); ++head) {
      const auto log_sum = [&](const Partial& partial) {
        return partial.max[head] + std::log(partial.sum[head]);
      };
      EXPECT_NEAR(std::exp(expected[head] - log_sum(whole)),
                  1 - std::exp(log_sum(others) - log_sum(whole)), 1e-4);
    }
    with_best_and_every_target([&](bool) {
      Partial actual(num_heads, width);
      std::fill(scores.begin(), scores.end(), 0.0f);
      coded_attention_partial(params, segment, 0, 70, actual.view());
      for (std::size_t head = 0; head < scores.size(); ++head) {
        EXPECT_NEAR(scores[head], expected[head], 2e-3);
        EXPECT_NEAR(actual.max[head] + std::log(actual.sum[head]),
                    whole.max[head] + std::log(whole.sum[head]), 2e-3);
      }
    });
  }
}

TEST_P(CodedAttention, MatchesReference) {
  const auto [form, widths, gain, head_dim, heads_per_kv] = GetParam();
  constexpr std::int64_t kKvHeads = 2;
  CodedInputs inputs(form, layout_of(widths, gain), kKvHeads, head_dim);
  const TileLayout layout = inputs.segment().values.layout;
  const CodedSegment scattered = inputs.scattered();
  const std::int64_t num_heads = kKvHeads * heads_per_kv;
  const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = num_heads,
                               .num_kv_heads = kKvHeads,
                               .head_dim = head_dim,
                               .scale = 0.2f / std::sqrt(static_cast<float>(head_dim))};
  params.raw_keys.rope = inputs.rope();
  for (const auto& [first, last] : {std::pair(0, 352), {7, 70}, {33, 34}, {64, 96}, {250, 300}}) {
    for (const auto& [softcap, segment] :
         {std::pair(0.0f, inputs.segment()), {3.0f, inputs.segment()}, {0.0f, scattered}}) {
      params.softcap = softcap;
      Partial expected(num_heads, layout.num_coefficients() + 1);
      coded_attention_partial_reference(params, segment, first, last, expected.view());
      expected = as_levels(layout, expected);
      with_best_and_every_target([&, first = first, last = last](bool is_best) {
        Partial actual(num_heads, layout.num_coefficients() + 1);
        coded_attention_partial(params, segment, first, last, actual.view());
        // Levels reach to 128, with gains to 16 times that: of the latter, a few of a token's weights being
        // as large, weights of 16 bits keep 12.
        const bool rounds_weights = is_best && has_avx512_vnni();
        const double tolerance = !layout.gain ? 2e-3 : rounds_weights ? 128 * 16.0 / 4096 : 2e-2;
        EXPECT_TRUE(partials_close(as_levels(layout, actual), expected, tolerance))
            << "tokens " << first << " .. " << last
            << (segment.positions == nullptr ? "" : " at positions of their own");
      });
    }
  }
}

// Keys without codes: scores are what means turn to.
TEST(CodedAttention, TurnsMeansToEveryToken) {
  for (const auto& [head_dim, rotary] : {std::pair(20, 2), {64, 2}, {64, 1}, {256, 2}}) {
    for (const bool interleaved : {false, true}) {
      const CodedForm form{.rotated = true,
                           .values = {0, 4},
                           .rotary = rotary,
                           .interleaved = interleaved,
                           .with_means = true};
      CodedInputs inputs(form, layout_of({}, false), 1, head_dim);
      const std::vector<float> query = random_numbers(5 * head_dim, 3);
      DecodeAttentionParams params{.query = query.data(),
                                   .num_heads = 5,
                                   .num_kv_heads = 1,
                                   .head_dim = head_dim,
                                   .scale = 1};
      params.raw_keys.rope = inputs.rope();
      for (const CodedSegment& segment : {inputs.segment(), inputs.scattered()}) {
        for (std::int64_t token = 0; token < 352; ++token) {
          Partial expected(5, 5);
          coded_attention_partial_reference(params, segment, token, token + 1, expected.view());
          with_best_and_every_target([&](bool) {
            Partial actual(5, 5);
            coded_attention_partial(params, segment, token, token + 1, actual.view());
            for (std::size_t head = 0; head < 5; ++head) {
              EXPECT_NEAR(actual.max[head], expected.max[head], 1e-5 * head_dim / 4) << token;
            }
          });
        }
      }
    }
  }
}

const std::vector<std::int64_t> kFew{0, 3, 4, 9}, kOfEveryWidth{5, 4, 3, 7, 2, 3, 1, 2};

INSTANTIATE_TEST_SUITE_P(Shapes, CodedAttention,
                         ::testing::Combine(::testing::Values(CodedForm{}),
                                            ::testing::Values(std::vector<std::int64_t>{}, kFew,
                                                              kOfEveryWidth),
                                            ::testing::Bool(), ::testing::Values(8, 20, 64),
                                            ::testing::Values(1, 3, 4, 7)));

const auto kForms = ::testing::Values(
    CodedForm{.num_bases = 1, .values = {2, 0, 5}}, CodedForm{.num_bases = 4, .values = {3}},
    CodedForm{.num_bases = 4, .values = {3, 1}, .value_gain = true, .interleaved = true},
    CodedForm{.pairs = true, .values = {0, 0, 6}},
    CodedForm{.pairs = true, .values = {}, .rotary = 1},
    CodedForm{.pairs = true, .values = {0, 2, 3}, .value_gain = true, .interleaved = true},
    CodedForm{.pairs = true, .values = {0, 2, 3}, .rotary = 0},
    CodedForm{.rotated = true, .values = {0, 1, 0, 4}},
    CodedForm{.rotated = true, .values = {3}, .value_gain = true, .rotary = 1},
    CodedForm{.rotated = true, .values = {0, 4}, .interleaved = true},
    CodedForm{.rotated = true, .values = {0, 4}, .rotary = 0, .with_means = true},
    CodedForm{.rotated = true, .values = {0, 4}, .with_means = true});

// Keys in tiles of their own.
INSTANTIATE_TEST_SUITE_P(HeadDims, CodedAttention,
                         ::testing::Combine(kForms, ::testing::Values(kOfEveryWidth),
                                            ::testing::Bool(), ::testing::Values(32, 64, 80, 128),
                                            ::testing::Values(7)));
INSTANTIATE_TEST_SUITE_P(Heads, CodedAttention,
                         ::testing::Combine(kForms,
                                            ::testing::Values(std::vector<std::int64_t>{}, kFew),
                                            ::testing::Values(false), ::testing::Values(32),
                                            ::testing::Values(1, 2, 4)));

}  // namespace
}  // namespace kvc
