#include "runtime/kernels/prompt_attention.h"

#include <gtest/gtest.h>

#include <cmath>
#include <cstring>

#include "runtime/kernels/code_tiles.h"
#include "runtime/kernels/kv_element.h"
#include "runtime/kernels/narrow.h"
#include "tests/runtime/kernels/kernel_inputs.h"
#include "tests/runtime/kernels/runtime_targets.h"

namespace kvc {
namespace {

struct Shape {
  std::int64_t num_heads, num_kv_heads, head_dim, window = 0;
  float softcap = 0;
  bool exact_step = false;
  std::int64_t exact_tiles = 1, sinks = 0;
};

// Rows of tokens of a type, and what each number is.
class Rows {
 public:
  Rows(std::int64_t first, std::int64_t last, std::int64_t heads, std::int64_t head_dim,
       KvElement element, unsigned seed)
      : numbers_(testing::random_bfloat16((last - first) * heads * head_dim, seed)),
        narrow_(numbers_.size()) {
    for (std::size_t i = 0; i < numbers_.size(); ++i) {
      narrow_[i] = narrow_bfloat16(numbers_[i]);
    }
    void* data = element == KvElement::kFloat32 ? static_cast<void*>(numbers_.data())
                                                : static_cast<void*>(narrow_.data());
    rows = {data, element, heads * head_dim, head_dim, first, last};
  }
  float number(std::size_t i) const {
    return rows.element == KvElement::kFloat32 ? numbers_[i] : widen_bfloat16(narrow_[i]);
  }
  std::size_t size() const { return numbers_.size(); }

  TokenRows rows;

 private:
  std::vector<float> numbers_;
  std::vector<std::uint16_t> narrow_;
};

// A prompt's tokens first .. last - 1, with rows that depend on the token alone.
class Prompt {
 public:
  Prompt(const Shape& shape, KvElement element, std::int64_t length)
      : shape_(shape),
        query_(0, length, shape.num_heads, shape.head_dim, element, 1),
        coded_key_(0, length, shape.num_kv_heads, shape.head_dim, element, 2),
        coded_value_(0, length, shape.num_kv_heads, shape.head_dim, element, 3),
        exact_key_(0, length, shape.num_kv_heads, shape.head_dim, element, 4),
        exact_value_(0, length, shape.num_kv_heads, shape.head_dim, element, 5),
        element_(element) {}

  // [tokens, num_heads, head_dim], in float32 or what a narrow output says
  std::vector<float> attend(std::int64_t first, std::int64_t last, bool reference) const {
    Rows output(first, last, shape_.num_heads, shape_.head_dim, element_, 6);
    PromptAttention params{.query = part(query_, first, last),
                           .output = output.rows,
                           .num_heads = shape_.num_heads,
                           .num_kv_heads = shape_.num_kv_heads,
                           .head_dim = shape_.head_dim,
                           .scale = 1 / std::sqrt(static_cast<float>(shape_.head_dim)),
                           .softcap = shape_.softcap,
                           .window = shape_.window,
                           .exact_step = shape_.exact_step,
                           .exact_tiles = shape_.exact_tiles,
                           .sinks = shape_.sinks};
    const std::int64_t begin =
        shape_.exact_step ? first / kTileTokens * kTileTokens : params.exact_start(first);
    params.exact_key = part(exact_key_, begin, last);
    params.exact_value = part(exact_value_, begin, last);
    const std::int64_t end = params.exact_start(last - 1);
    const std::int64_t old = std::min(end, params.seen_from(first) / kTileTokens * kTileTokens);
    params.coded_key = part(coded_key_, old, end);
    params.coded_value = part(coded_value_, old, end);
    const std::int64_t pieces = prompt_pieces(params);
    for (std::int64_t i = 0; i < pieces; ++i) {
      (reference ? prompt_attention_reference : prompt_attention)(params, i, i + 1);
    }
    std::vector<float> numbers(output.size());
    for (std::size_t i = 0; i < numbers.size(); ++i) {
      numbers[i] = output.number(i);
    }
    return numbers;
  }

 private:
  static TokenRows part(const Rows& all, std::int64_t first, std::int64_t last) {
    TokenRows rows = all.rows;
    const std::int64_t bytes = rows.element == KvElement::kFloat32 ? 4 : 2;
    rows.data = static_cast<std::uint8_t*>(rows.data) + rows.place(first, 0) * bytes;
    rows.first = first;
    rows.last = last;
    return rows;
  }

  Shape shape_;
  Rows query_, coded_key_, coded_value_, exact_key_, exact_value_;
  KvElement element_;
};

constexpr Shape kShapes[] = {
    {.num_heads = 4, .num_kv_heads = 1, .head_dim = 32},
    {.num_heads = 2, .num_kv_heads = 2, .head_dim = 128},
    {.num_heads = 3, .num_kv_heads = 1, .head_dim = 80},
    {.num_heads = 1, .num_kv_heads = 1, .head_dim = 7},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .window = 100},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .window = 5},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 64, .softcap = 3},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .exact_tiles = 2},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .window = 100, .exact_tiles = 3},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .window = 5, .exact_tiles = 6},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .sinks = 4},
    {.num_heads = 4, .num_kv_heads = 2, .head_dim = 64, .exact_tiles = 2, .sinks = 4},
    {.num_heads = 2,
     .num_kv_heads = 1,
     .head_dim = 32,
     .window = 100,
     .exact_tiles = 3,
     .sinks = 40},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .window = 5, .exact_tiles = 2, .sinks = 32},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .exact_step = true},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .window = 70, .exact_step = true},
    {.num_heads = 2, .num_kv_heads = 1, .head_dim = 32, .window = 3, .exact_step = true}};

class EveryPromptTarget : public ::testing::TestWithParam<std::int64_t> {
 protected:
  testing::ChosenTarget chosen_{GetParam()};
};

TEST_P(EveryPromptTarget, AttendsToPromptsAsTheReferenceDoes) {
  for (const Shape& shape : kShapes) {
    for (const auto& [element, special] : {std::pair{KvElement::kFloat32, true},
                                           {KvElement::kBFloat16, true},
                                           {KvElement::kBFloat16, false}}) {
      const testing::SpecialInstructions instructions(special);
      const Prompt prompt(shape, element, 420);
      for (const auto& [first, last] :
           {std::pair{0, 420}, {0, 1}, {33, 34}, {31, 200}, {127, 129}, {128, 384}, {250, 419}}) {
        const std::vector<float> expected = prompt.attend(first, last, true);
        const std::vector<float> actual = prompt.attend(first, last, false);
        // bfloat16 outputs below 4 may round to the neighbour.
        const float tolerance = element == KvElement::kFloat32 ? 1e-5f : 0.02f;
        for (std::size_t i = 0; i < expected.size(); ++i) {
          ASSERT_NEAR(actual[i], expected[i], tolerance)
              << "head_dim " << shape.head_dim << " window " << shape.window << " tokens " << first
              << " to " << last << " number " << i;
        }
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(PromptAttention, EveryPromptTarget,
                         ::testing::ValuesIn(testing::every_target()));

TEST(PromptAttention, DoesNotDependOnCuts) {
  for (const Shape& shape : kShapes) {
    if (shape.exact_step) {
      continue;  // which tokens are exact depends on the cut
    }
    for (const KvElement element : {KvElement::kFloat32, KvElement::kBFloat16}) {
      const Prompt prompt(shape, element, 300);
      const std::vector<float> whole = prompt.attend(0, 300, false);
      std::vector<float> parts;
      for (std::int64_t first = 0; first < 300; first += 37) {
        const std::vector<float> part =
            prompt.attend(first, std::min<std::int64_t>(first + 37, 300), false);
        parts.insert(parts.end(), part.begin(), part.end());
      }
      ASSERT_EQ(whole.size(), parts.size());
      EXPECT_EQ(std::memcmp(whole.data(), parts.data(), whole.size() * sizeof(float)), 0)
          << "head_dim " << shape.head_dim << " window " << shape.window;
    }
  }
}

}  // namespace
}  // namespace kvc
