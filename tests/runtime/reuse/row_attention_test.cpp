#include "runtime/reuse/row_attention.h"

#include <gtest/gtest.h>

#include "model/decoder.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

struct Case {
  at::Tensor query, key, value;
};

Case random_case(std::int64_t num_tokens, std::int64_t num_heads, std::int64_t num_kv_heads) {
  return {random_normal({num_tokens, num_heads, 8}, 1),
          random_normal({num_tokens, num_kv_heads, 8}, 2),
          random_normal({num_tokens, num_kv_heads, 8}, 3)};
}

// Row by row: probabilities of every head, added up over rows and heads.
at::Tensor received_by_hand(const Case& x, const at::Tensor& rows, const AttentionRule& rule) {
  const std::int64_t num_tokens = x.key.size(0), group = x.query.size(1) / x.key.size(1);
  at::Tensor sums = at::zeros({num_tokens}, at::kDouble);
  for (std::int64_t i = 0; i < rows.size(0); ++i) {
    const std::int64_t row = rows[i].item<std::int64_t>();
    const std::int64_t first = rule.window ? std::max<std::int64_t>(0, row + 1 - *rule.window) : 0;
    for (std::int64_t head = 0; head < x.query.size(1); ++head) {
      at::Tensor scores =
          at::mv(x.key.slice(0, first, row + 1).select(1, head / group), x.query[row][head]) *
          rule.scale.value_or(1 / std::sqrt(8.0));
      if (rule.softcap != 0) {
        scores = (scores / rule.softcap).tanh() * rule.softcap;
      }
      sums.slice(0, first, row + 1) += scores.softmax(0);
    }
  }
  return sums;
}

TEST(RowAttention, AgreesWithAttentionOfTheWholeText) {
  for (const AttentionRule& rule :
       {AttentionRule{}, AttentionRule{.window = 40}, AttentionRule{.scale = 0.5, .softcap = 2}}) {
    for (const std::int64_t num_tokens : {1, 7, 700}) {
      const Case x = random_case(num_tokens, 6, 2);
      const RowAttention attention(x.key, x.value, rule);
      const at::Tensor whole = causal_attention(x.query, x.key, x.value, rule);
      const at::Tensor all = at::arange(num_tokens, at::kLong);
      for (const std::int64_t step : {1, 3}) {
        const at::Tensor rows = all.slice(0, 0, num_tokens, step).contiguous();
        std::vector<ReceivedAttention> received;
        const at::Tensor output = attention.attend(x.query.index_select(0, rows), rows, &received);
        EXPECT_TRUE(tensors_close(output, whole.index_select(0, rows), 1e-5));
        const at::Tensor sums = sum_received(received, num_tokens);
        if (num_tokens < 100) {
          EXPECT_TRUE(tensors_close(sums, received_by_hand(x, rows, rule), 1e-5));
        }
        EXPECT_NEAR(sums.sum().item<double>(), 6.0 * static_cast<double>(rows.size(0)), 1e-2);
        EXPECT_TRUE(tensors_close(
            sum_received(attention.received(x.query.index_select(0, rows), rows), num_tokens), sums,
            1e-6));
      }
    }
  }
}

}  // namespace
}  // namespace kvc
