#include "runtime/kernels/coded_attention.h"

#include <gtest/gtest.h>
#include <hwy/targets.h>

#include <algorithm>
#include <cmath>
#include <cstdlib>
#include <limits>
#include <random>
#include <string>
#include <tuple>
#include <vector>

#include "runtime/kernels/cpu_features.h"
#include "tests/runtime/kernels/kernel_inputs.h"

namespace kvc {
namespace {

using testing::Partial;
using testing::partials_close;
using testing::random_numbers;

constexpr std::int64_t kTiles = 5, kBlockTiles = 2, kPosition = 40;

TileLayout layout_of(const std::vector<std::int64_t>& from_width_one, bool gain) {
  TileLayout layout{.coefficients = {}, .gain = gain};
  std::copy(from_width_one.begin(), from_width_one.end(), layout.coefficients + 1);
  return layout;
}

// Random codes in blocks of kBlockTiles tiles, and random decoders of each KV head whose columns are as
// large as the widths of their codes make them in a block with equal errors.
class CodedInputs {
 public:
  CodedInputs(const TileLayout& layout, std::int64_t num_kv_heads, std::int64_t head_dim)
      : memory_(static_cast<std::size_t>((kTiles + 1) * layout.bytes())),
        angles_(kPosition + kTiles * kTileTokens, head_dim / 4, false, 1.3) {
    std::mt19937 random(1);
    for (std::uint8_t& byte : memory_) {
      byte = static_cast<std::uint8_t>(random());
    }
    for (std::int64_t tile = 0; layout.gain && tile <= kTiles; ++tile) {
      for (std::int64_t token = 0; token < kTileTokens; ++token) {
        memory_[static_cast<std::size_t>(tile * layout.bytes() + layout.code_bytes() + token)] =
            static_cast<std::uint8_t>(random() % kNumGains);
      }
    }
    for (std::int64_t tile = 0; tile < kTiles; tile += kBlockTiles) {
      blocks_.push_back(memory_.data() + tile * layout.bytes());
    }
    const std::int64_t count = layout.num_coefficients();
    const std::vector<float> steps(static_cast<std::size_t>(count), 0.5f);
    for (std::int64_t head = 0; head < num_kv_heads; ++head) {
      const auto seed = static_cast<unsigned>(head) + 2;
      std::vector<float> decoder = random_numbers(count * head_dim, seed);
      for (float& x : decoder) {
        x *= 0.02f;
      }
      const std::vector<float> mean = random_numbers(head_dim, seed + 50);
      keys_.emplace_back(layout, decoder.data(), count, head_dim, steps.data(), mean.data());
    }
    segment_.keys = segment_.values = {blocks_.data(), kBlockTiles, kTiles, layout};
    segment_.rows = keys_.data();
    segment_.first_position = kPosition;
  }
  const CodedSegment& segment() const { return segment_; }
  // The same tokens at positions that are no run.
  CodedSegment scattered() {
    for (std::int64_t token = 0; token < kTiles * kTileTokens; ++token) {
      positions_.push_back(static_cast<std::int32_t>(token * 37 % (kPosition + 150)));
    }
    CodedSegment segment = segment_;
    segment.positions = positions_.data();
    return segment;
  }
  const RopeAngles& rope() const { return angles_.rope; }

 private:
  std::vector<std::uint8_t> memory_;
  std::vector<const void*> blocks_;
  testing::Angles angles_;
  std::vector<CodedKeyRows> keys_;
  std::vector<std::int32_t> positions_;
  CodedSegment segment_;
};

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

// Coefficients from width 1 on, gain, head_dim, query heads per KV head.
using Shape = std::tuple<std::vector<std::int64_t>, bool, std::int64_t, std::int64_t>;

class CodedAttention : public ::testing::TestWithParam<Shape> {
 protected:
  ~CodedAttention() override { choose(0); }
  // 0: whatever is best.
  static void choose(std::int64_t target) {
    allow_special_instructions(target == 0);
    hwy::SetSupportedTargetsForTest(target);
    hwy::GetChosenTarget().Update(hwy::SupportedTargets());
  }
  static std::vector<std::int64_t> targets() {
    std::vector<std::int64_t> each{0};
    for (std::int64_t all = hwy::SupportedTargets(); all != 0; all &= all - 1) {
      each.push_back(all & -all);
    }
    return each;
  }
};

TEST_P(CodedAttention, MatchesReference) {
  const auto [widths, gain, head_dim, heads_per_kv] = GetParam();
  constexpr std::int64_t kKvHeads = 2;
  const TileLayout layout = layout_of(widths, gain);
  CodedInputs inputs(layout, kKvHeads, head_dim);
  const CodedSegment scattered = inputs.scattered();
  const std::int64_t num_heads = kKvHeads * heads_per_kv;
  const std::vector<float> query = random_numbers(num_heads * head_dim, 3);
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = num_heads,
                               .num_kv_heads = kKvHeads,
                               .head_dim = head_dim,
                               .scale = 0.2f / std::sqrt(static_cast<float>(head_dim))};
  params.raw_keys.rope = inputs.rope();
  for (const auto& [first, last] : {std::pair(0, 160), {7, 70}, {33, 34}, {64, 96}}) {
    for (const auto& [softcap, segment] :
         {std::pair(0.0f, inputs.segment()), {3.0f, inputs.segment()}, {0.0f, scattered}}) {
      params.softcap = softcap;
      Partial expected(num_heads, layout.num_coefficients() + 1);
      coded_attention_partial_reference(params, segment, first, last, expected.view());
      expected = as_levels(layout, expected);
      for (const std::int64_t target : targets()) {
        choose(target);
        Partial actual(num_heads, layout.num_coefficients() + 1);
        coded_attention_partial(params, segment, first, last, actual.view());
        choose(0);
        // Levels reach to 128, with gains to 16 times that: of the latter, a few of a token's weights being
        // as large, weights of 16 bits keep 12.
        const bool rounds_weights = target == 0 && has_avx512_vnni();
        const double tolerance = !gain ? 2e-3 : rounds_weights ? 128 * 16.0 / 4096 : 2e-2;
        EXPECT_TRUE(partials_close(as_levels(layout, actual), expected, tolerance))
            << hwy::TargetName(target) << ", tokens " << first << " .. " << last
            << (segment.positions == nullptr ? "" : " at positions of their own");
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Shapes, CodedAttention,
                         ::testing::Combine(::testing::Values(std::vector<std::int64_t>{},
                                                              std::vector<std::int64_t>{0, 3, 4, 9},
                                                              std::vector<std::int64_t>{
                                                                  5, 4, 3, 7, 2, 3, 1, 2}),
                                            ::testing::Bool(), ::testing::Values(8, 20, 64),
                                            ::testing::Values(1, 3, 4, 7)));

// What a weight stands for is near F * step: to 16 bits, or where the codes' own error hides it.
TEST(CodedKeyRows, AreTheDecoderTimesTheSteps) {
  const std::int64_t head_dim = 24, count = 40;
  const TileLayout layout = layout_of({0, 0, 10, 20, 0, 0, 0, 10}, false);
  const std::vector<float> decoder = random_numbers(count * head_dim, 1);
  std::vector<float> steps(count, 0.1f);
  const std::vector<float> mean(static_cast<std::size_t>(head_dim), 0.0f);
  const CodedKeyRows rows(layout, decoder.data(), count, head_dim, steps.data(), mean.data());
  EXPECT_GE(rows.num_wide(), 8);
  EXPECT_LT(rows.num_wide(), count);
  double added = 0, made = 0;
  for (std::int64_t d = 0; d < head_dim; ++d) {
    for (std::int64_t c = 0; c < count; ++c) {
      const double weight = double{decoder[static_cast<std::size_t>(d * count + c)]} * 0.1f;
      const double error = rows.scale(d) * rows.integer(d, c) - weight;
      if (c < rows.num_wide()) {
        EXPECT_LE(std::fabs(error), 0.51 * rows.scale(d));
      } else {
        const int bits = c < 30 ? 4 : 3;
        added += error * error * std::exp2(2 * bits) / 32;
      }
      made += weight * weight / 12;
    }
  }
  EXPECT_LE(added, CodedKeyRows::kAddedDistortion * made);
}

// With as many wide codes as heads of 512 channels have, all of them at their largest.
TEST(CodedKeyRows, SumOverCodesWithin32Bits) {
  const std::int64_t head_dim = 8, count = 1024;
  const TileLayout layout = layout_of({0, 0, 0, 0, 0, 0, 0, count}, false);
  std::vector<float> decoder(static_cast<std::size_t>(head_dim * count), 0.001f);
  std::fill(decoder.begin() + count, decoder.begin() + 2 * count, -0.0005f);
  const std::vector<float> steps(static_cast<std::size_t>(count), 1.0f);
  const std::vector<float> mean(static_cast<std::size_t>(head_dim), 0.0f);
  const CodedKeyRows rows(layout, decoder.data(), count, head_dim, steps.data(), mean.data());
  for (std::int64_t d = 0; d < 2; ++d) {
    std::int64_t sum = 0;
    for (std::int64_t c = 0; c < count; ++c) {
      sum += std::int64_t{255} * rows.integer(d, c);
    }
    EXPECT_LE(std::abs(sum), std::numeric_limits<std::int32_t>::max());
    EXPECT_NEAR(rows.scale(d) * static_cast<double>(sum), d == 0 ? 261.12 : -130.56, 0.1);
  }
  std::vector<std::uint8_t> tile(static_cast<std::size_t>(layout.bytes()), 255);
  const void* block = tile.data();
  const CodeTiles all{&block, 1, 1, layout};
  const CodedSegment segment{.keys = all, .values = all, .rows = &rows};
  const std::vector<float> query(static_cast<std::size_t>(head_dim), 1.0f);
  DecodeAttentionParams params{.query = query.data(),
                               .num_heads = 1,
                               .num_kv_heads = 1,
                               .head_dim = head_dim,
                               .scale = 0.001f};
  Partial expected(1, count + 1), actual(1, count + 1);
  coded_attention_partial_reference(params, segment, 0, kTileTokens, expected.view());
  coded_attention_partial(params, segment, 0, kTileTokens, actual.view());
  EXPECT_NEAR(actual.max[0], expected.max[0], 1e-3);
}

}  // namespace
}  // namespace kvc
