#include "runtime/reuse/token_match.h"

#include <dlfcn.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <numeric>

#include "core/error.h"
#include "runtime/reuse/faiss_match.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

using testing::random_normal;
using testing::tensors_close;

// The definition, pair by pair in float64.
at::Tensor turned_by_hand(const at::Tensor& embeddings) {
  at::Tensor turned = embeddings.to(at::kDouble).clone();
  const std::int64_t width = embeddings.size(1);
  for (std::int64_t i = 0; i < embeddings.size(0); ++i) {
    double square = 0;
    for (std::int64_t k = 0; k < width / 2; ++k) {
      const double angle =
          static_cast<double>(i) * std::pow(10000.0, -2.0 * static_cast<double>(k) / width);
      const double x = embeddings[i][2 * k].item<double>();
      const double y = embeddings[i][2 * k + 1].item<double>();
      turned[i][2 * k] = x * std::cos(angle) - y * std::sin(angle);
      turned[i][2 * k + 1] = x * std::sin(angle) + y * std::cos(angle);
      square += x * x + y * y;
    }
    turned[i] /= std::sqrt(square);
  }
  return turned;
}

std::vector<std::int64_t> list_of(const at::Tensor& x) {
  return {x.const_data_ptr<std::int64_t>(), x.const_data_ptr<std::int64_t>() + x.numel()};
}

TEST(TokenMatch, TurnsPairsOfTheWholeVector) {
  const at::Tensor embeddings = random_normal({37, 12}, 1);
  EXPECT_TRUE(tensors_close(turned_embeddings(embeddings).to(at::kDouble),
                            turned_by_hand(embeddings), 1e-6));
  EXPECT_TRUE(tensors_close(turned_embeddings(at::zeros({3, 4})), at::zeros({3, 4}), 0));
}

// Sizes around those of the tiles.
TEST(TokenMatch, EqualsBruteForce) {
  for (const auto& [target_tokens, donor_tokens] :
       {std::pair(1, 1), {5, 1}, {37, 71}, {512, 1024}, {513, 1025}, {700, 2100}}) {
    const at::Tensor target = turned_embeddings(random_normal({target_tokens, 16}, 2));
    const at::Tensor donor = turned_embeddings(random_normal({donor_tokens, 16}, 3));
    const TokenMatch match = match_tokens(target, donor);
    const at::Tensor cosines = at::mm(target.to(at::kDouble), donor.to(at::kDouble).t());
    const auto [best, index] = cosines.max(1);
    EXPECT_EQ(list_of(match.index), list_of(index)) << target_tokens << " x " << donor_tokens;
    EXPECT_TRUE(tensors_close(match.cosine.to(at::kDouble), best, 1e-6));
  }
}

TEST(TokenMatch, OfEqualDonorTokensTakesTheFirst) {
  const at::Tensor row = turned_embeddings(random_normal({1, 16}, 4));
  const at::Tensor donor = row.expand({2500, 16}).contiguous();
  EXPECT_EQ(list_of(match_tokens(row, donor).index), (std::vector<std::int64_t>{0}));
}

// A donor of which a tenth of the tokens are others.
TEST(TokenMatch, FaissFindsNearlyAllOfThem) {
  if (!has_faiss()) {
    GTEST_SKIP() << "built without FAISS";
  }
  const at::Tensor table = random_normal({300, 128}, 8);
  const at::Tensor ids = at::arange(2000, at::kLong).mul(7919).remainder(300);
  const at::Tensor changed = at::where(at::arange(2000).remainder(10).eq(3), 299 - ids, ids);
  const at::Tensor donor = turned_embeddings(table.index_select(0, ids));
  const at::Tensor target = turned_embeddings(table.index_select(0, changed));
  const TokenMatch exact = match_tokens(target, donor);
  for (const TokenSearch search : {TokenSearch::kFaissLsh, TokenSearch::kFaissIvf}) {
    const TokenMatch found = match_with_faiss(search, target, donor);
    const at::Tensor same = found.index.eq(exact.index);
    EXPECT_GT(same.to(at::kDouble).mean().item<double>(), 0.9) << to_string(search);
    EXPECT_TRUE(
        tensors_close(found.cosine.masked_select(same), exact.cosine.masked_select(same), 1e-5));
    EXPECT_TRUE((found.cosine <= exact.cosine + 1e-5).all().item<bool>());
    EXPECT_EQ(list_of(match_with_faiss(search, donor, donor).index),
              list_of(at::arange(2000, at::kLong)));
    EXPECT_EQ(list_of(match_with_faiss(search, donor.slice(0, 0, 5), donor.slice(0, 0, 3)).index),
              list_of(match_tokens(donor.slice(0, 0, 5), donor.slice(0, 0, 3)).index));
  }
}

// FAISS brings a BLAS of its own, which must not take the place of LibTorch's, many times as fast.
TEST(TokenMatch, MatrixProductsAreLibTorchs) {
  Dl_info found{};
  ASSERT_NE(::dladdr(::dlsym(RTLD_DEFAULT, "sgemm_"), &found), 0);
  EXPECT_THAT(found.dli_fname, ::testing::HasSubstr("libtorch"));
}

TEST(TokenMatch, RefusesFaissInABuildWithoutIt) {
  ReuseOptions options;
  if (has_faiss()) {
    parse_reuse("match=faiss-lsh", options);
    EXPECT_EQ(options.match, TokenSearch::kFaissLsh);
    return;
  }
  EXPECT_THROW(parse_reuse("match=faiss-lsh", options), UsageError);
  EXPECT_THROW(match_with_faiss(TokenSearch::kFaissIvf, at::zeros({1, 2}), at::zeros({1, 2})),
               Error);
}

TEST(TokenMatch, ThePositionTellsRepeatedTokensApart) {
  const at::Tensor table = random_normal({7, 64}, 5);
  std::vector<std::int64_t> ids(1500);
  for (std::size_t i = 0; i < ids.size(); ++i) {
    ids[i] = static_cast<std::int64_t>(i / 3 % 7);  // runs of one token
  }
  const at::Tensor turned = turned_embeddings(table.index_select(0, at::tensor(ids, at::kLong)));
  std::vector<std::int64_t> own(ids.size());
  std::iota(own.begin(), own.end(), 0);
  const TokenMatch match = match_tokens(turned, turned);
  EXPECT_EQ(list_of(match.index), own);
  for (const PromptSimilarity kind : {PromptSimilarity::kCosine, PromptSimilarity::kHamming30}) {
    EXPECT_NEAR(prompt_similarity(kind, match, turned, turned, 1), 1, 1e-6);
  }
}

TEST(TokenMatch, UnlikePromptsAreUnlike) {
  const at::Tensor a = turned_embeddings(random_normal({300, 256}, 6));
  const at::Tensor b = turned_embeddings(random_normal({300, 256}, 7));
  const TokenMatch match = match_tokens(a, b);
  EXPECT_LT(prompt_similarity(PromptSimilarity::kCosine, match, a, b, 1), 0.4);
  EXPECT_LT(prompt_similarity(PromptSimilarity::kHamming30, match, a, b, 1), 0.4);
  const TokenMatch opposite{.index = match.index, .cosine = -match.cosine};
  EXPECT_EQ(prompt_similarity(PromptSimilarity::kCosine, opposite, a, b, 1), 0);
}

}  // namespace
}  // namespace kvc
