// Whatever the ids, a stream's pieces are whole characters.
#include "runtime/text_stream.h"

#include <gtest/gtest.h>

#include <filesystem>
#include <random>

#include "model/tokenizer/utf8.h"

namespace kvc {
namespace {

const std::filesystem::path kData = KVC_TEST_DATA;

class TextStreamKinds : public ::testing::TestWithParam<const char*> {};

TEST_P(TextStreamKinds, PiecesAreWholeCharacters) {
  const Tokenizer tokenizer = Tokenizer::load(kData / GetParam());
  std::mt19937_64 random(5);  // NOLINT: the same ids in every run
  for (int round = 0; round < 300; ++round) {
    TextStream stream(tokenizer, {});
    std::string streamed;
    for (std::size_t i = 0; i < 1 + random() % 12; ++i) {
      const auto bound = static_cast<std::uint64_t>(tokenizer.vocab_size());
      // Ids below 300 are bytes, with special tokens among them.
      const std::string piece =
          stream.push(static_cast<std::int64_t>(random() % (random() % 2 == 0 ? 300u : bound)));
      ASSERT_FALSE(first_invalid_utf8(piece));
      streamed += piece;
    }
    const std::string rest = stream.finish();
    ASSERT_FALSE(first_invalid_utf8(rest));
  }
}

TEST_P(TextStreamKinds, PiecesMakeUpTheText) {
  const Tokenizer tokenizer = Tokenizer::load(kData / GetParam());
  const std::string text = "Once upon a caf\u00E9, \u4F60\u597D \U0001F600 12!";
  const auto ids = tokenizer.encode(text);
  TextStream stream(tokenizer, {});
  std::string streamed;
  for (const std::int64_t id : ids) streamed += stream.push(id);
  EXPECT_EQ(streamed + stream.finish(), tokenizer.decode(ids));
}

INSTANTIATE_TEST_SUITE_P(Kinds, TextStreamKinds,
                         ::testing::Values("reference-llama", "stories260K-hf", "tokenizer/gpt2",
                                           "tokenizer/llama3", "tokenizer/llama2",
                                           "tokenizer/mistral", "tokenizer/gemma", "tokenizer/clip",
                                           "tokenizer/metaspace_always", "tokenizer/control"));

TEST(TextStreamBytes, ABadByteAfterPrintedOnes) {
  const Tokenizer tokenizer = Tokenizer::load(kData / "stories260K-hf");
  // <0x41> is printed; the bad <0xE4> after it turns both into U+FFFD.
  TextStream stream(tokenizer, {});
  const auto id_of_byte = [](int byte) { return std::int64_t{3 + byte}; };
  EXPECT_EQ(stream.push(id_of_byte(0x41)), "A");
  EXPECT_EQ(stream.push(id_of_byte(0xE4)), "");
  EXPECT_EQ(stream.finish(), "\uFFFD");
}

}  // namespace
}  // namespace kvc
