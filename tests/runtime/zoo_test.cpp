// The runtime against transformers, for every architecture and its variants: logits of prompts and
// the tokens that follow greedily, with the KV cache.
#include <gtest/gtest.h>

#include "runtime/engine.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/zoo.h"

namespace kvc {
namespace {

using testing::spread;
using testing::tensors_close;
using testing::ZooCase;
using testing::ZooPrompt;

constexpr double kTolerance = 1e-5;  // of the logits' spread

Engine load(const ZooCase& zoo_case) {
  EngineOptions options;
  options.dtype = "float32";
  return Engine::load(zoo_case.directory, options);
}

std::int64_t best(const at::Tensor& rows) { return rows[-1].argmax().item<std::int64_t>(); }

// What follows each prompt greedily, all in one batch; fills `rows` with the prompts' logits.
Engine::Ids greedy(const Engine& engine, const std::vector<ZooPrompt>& prompts,
                   std::vector<at::Tensor>& rows) {
  std::vector<Sequence> sequences;
  std::vector<Sequence*> pointers;
  Engine::Ids ids, tokens(prompts.size());
  sequences.reserve(prompts.size());
  for (const ZooPrompt& prompt : prompts) {
    sequences.push_back(engine.new_sequence());
    pointers.push_back(&sequences.back());
    ids.push_back(prompt.ids);
  }
  rows = engine.prefill(pointers, ids, Engine::Rows::kAll);
  std::vector<at::Tensor> last = rows;
  for (std::size_t step = 0; step < prompts.front().tokens.size(); ++step) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      tokens[i].push_back(best(last[i]));
      ids[i] = {tokens[i].back()};
    }
    last = engine.extend(pointers, ids, Engine::Rows::kLast);
  }
  return tokens;
}

void expect_golden(const Engine& engine, const std::vector<ZooPrompt>& prompts) {
  std::vector<at::Tensor> rows;
  const Engine::Ids tokens = greedy(engine, prompts, rows);
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    EXPECT_TRUE(tensors_close(rows[i], prompts[i].logits, kTolerance * spread(prompts[i].logits)));
    EXPECT_EQ(tokens[i], prompts[i].tokens);
  }
}

class ZooEngine : public ::testing::TestWithParam<std::string> {};

TEST_P(ZooEngine, PromptsOneByOne) {
  const ZooCase zoo_case = testing::load_zoo_case(GetParam());
  const Engine engine = load(zoo_case);
  for (const ZooPrompt& prompt : zoo_case.prompts) {
    expect_golden(engine, {prompt});
  }
}

TEST_P(ZooEngine, BatchOfDifferentLengths) {
  const ZooCase zoo_case = testing::load_zoo_case(GetParam());
  expect_golden(load(zoo_case), zoo_case.prompts);
}

TEST_P(ZooEngine, PromptsInPieces) {
  constexpr std::size_t kPiece = 10;
  const ZooCase zoo_case = testing::load_zoo_case(GetParam());
  if (zoo_case.by_length) {
    GTEST_SKIP() << "RoPE depends on how much of the text is there";
  }
  const Engine engine = load(zoo_case);
  for (const ZooPrompt& prompt : zoo_case.prompts) {
    Sequence sequence = engine.new_sequence();
    std::vector<at::Tensor> rows;
    for (std::size_t first = 0; first < prompt.ids.size(); first += kPiece) {
      const auto begin = prompt.ids.begin() + static_cast<std::ptrdiff_t>(first);
      const auto length = std::min(kPiece, prompt.ids.size() - first);
      const Engine::Ids piece = {{begin, begin + static_cast<std::ptrdiff_t>(length)}};
      rows.push_back(engine.prefill({&sequence}, piece, Engine::Rows::kAll).front());
    }
    EXPECT_TRUE(tensors_close(at::cat(rows), prompt.logits, kTolerance * spread(prompt.logits)));
  }
}

INSTANTIATE_TEST_SUITE_P(All, ZooEngine, ::testing::ValuesIn(testing::zoo_names()),
                         [](const auto& row) { return row.param; });

}  // namespace
}  // namespace kvc
