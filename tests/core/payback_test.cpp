#include "core/payback.h"

#include <gtest/gtest.h>

namespace kvc {
namespace {

TEST(Payback, CountsTokensWhoseCachesSaveMoreThanTheFactorsWeigh) {
  const Payback gain = payback(1000, 16, 0.25);  // 12 bytes a token
  EXPECT_EQ(gain.saved_bytes_per_token, 12);
  EXPECT_EQ(gain.tokens, 84);                     // 83 save 996, 84 save 1008
  EXPECT_EQ(payback(1008, 16, 0.25).tokens, 85);  // 84 save as much, not more
}

TEST(Payback, IsAtOnceWhereWeightsDoNotGrow) {
  EXPECT_EQ(payback(0, 16, 0.5).tokens, 0);
  EXPECT_EQ(payback(-100, 16, 0.5).tokens, 0);
}

TEST(Payback, NeverComesWhereCachesAreNoSmaller) {
  EXPECT_EQ(payback(1, 16, 1).tokens, Payback::kNever);
  EXPECT_EQ(payback(1, 16, 1.2).tokens, Payback::kNever);
  EXPECT_TRUE(to_json(payback(1, 16, 1))["tokens"].is_null());
}

TEST(Payback, ReadsAsASentence) {
  EXPECT_EQ(to_text(payback(96 << 20, 16384, 0.25)),
            "pays from 8193 tokens in flight (factors 96.0 MiB; saves 12.0 KiB a token)");
  EXPECT_EQ(to_text(payback(0, 4096, 0.5)),
            "pays from the first token (no factors; saves 2.0 KiB a token)");
  EXPECT_EQ(to_text(payback(0, 16, 1)), "saves nothing (no factors; caches are no smaller)");
  EXPECT_EQ(to_text(payback(512, 16, 1)), "never pays (factors 512 B; caches are no smaller)");
}

}  // namespace
}  // namespace kvc
