#include "model/text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <set>
#include <string>

#include "core/error.h"
#include "core/hash.h"
#include "tests/testing/error_of.h"

namespace kvc {
namespace {

using ::testing::HasSubstr;

class Text : public ::testing::Test {
 protected:
  Text() { std::filesystem::create_directories(directory_); }
  ~Text() override { std::filesystem::remove_all(directory_); }

  std::filesystem::path file(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
    return directory_ / name;
  }
  TokenSet load(const std::vector<std::filesystem::path>& files, const TextOptions& options,
                std::int64_t vocab_size = 512) {
    return load_token_set(files, tokenizer_, vocab_size, options, "calibration");
  }
  std::string message_of(const std::filesystem::path& path) {
    const std::string message = error_of([&] { load({path}, {.num_sequences = 1, .seq_len = 8}); });
    EXPECT_THAT(message, AnyOf("", HasSubstr(path.filename().string())));
    return message;
  }

  std::filesystem::path directory_ =
      std::filesystem::path(::testing::TempDir()) /
      (std::string("kvc_text_") + ::testing::UnitTest::GetInstance()->current_test_info()->name());
  Tokenizer tokenizer_ = Tokenizer::load(std::filesystem::path(KVC_TEST_DATA) / "stories260K-hf");
};

TEST_F(Text, RowsAreTheTextInOrder) {
  const std::string text = "Once upon a time, there was a little girl named Lily. She went home.";
  const auto ids = tokenizer_.encode(text, false);
  const TokenSet tokens = load({file("a.txt", text)}, {.num_sequences = 0, .seq_len = 6});
  ASSERT_EQ(tokens.sequences.size(), ids.size() / 5);  // 5 and <s>
  for (std::size_t row = 0; row < tokens.sequences.size(); ++row) {
    ASSERT_EQ(tokens.sequences[row].size(), 6u);
    EXPECT_EQ(tokens.sequences[row][0], 1);
    for (std::size_t i = 0; i < 5; ++i) EXPECT_EQ(tokens.sequences[row][i + 1], ids[row * 5 + i]);
  }
  EXPECT_EQ(tokens.tokenizer_hash, tokenizer_.hash());
  EXPECT_EQ(tokens.source_hashes, std::vector<std::string>{sha256_hex(text)});
  EXPECT_EQ(tokens.split, "calibration");
}

TEST_F(Text, AShortTextIsOneShortRow) {
  const TokenSet tokens = load({file("a.txt", "Once")}, {.num_sequences = 4, .seq_len = 100});
  ASSERT_EQ(tokens.sequences.size(), 1u);
  EXPECT_EQ(tokens.sequences[0], tokenizer_.encode("Once"));
}

TEST_F(Text, JsonlJoinsTheTextFields) {
  const TextOptions options{.num_sequences = 0, .seq_len = 4};
  const auto records =
      file("a.jsonl", "{\"text\": \"Once upon\"}\n\n{\"id\": 1, \"text\": \"a time\"}\r\n");
  const auto plain = file("a.txt", "Once upon\n\na time");
  EXPECT_EQ(load({records}, options).sequences, load({plain}, options).sequences);
}

TEST_F(Text, FilesTogetherGiveTheRowsOfEach) {
  const TextOptions options{.num_sequences = 0, .seq_len = 5};
  const auto a = file("a.txt", "Once upon a time"), b = file("b.txt", "there was a girl");
  auto rows = load({a}, options).sequences;
  for (const auto& row : load({b}, options).sequences) rows.push_back(row);
  EXPECT_EQ(load({a, b}, options).sequences, rows);
}

TEST_F(Text, ChosenRowsAreDistinctSpreadAndSeeded) {
  const auto all = load({}, {.num_sequences = 0, .seq_len = 64}).sequences;
  std::set<std::vector<std::vector<std::int64_t>>> choices;
  for (std::uint64_t seed = 0; seed < 8; ++seed) {
    const TextOptions options{.num_sequences = 16, .seq_len = 64, .seed = seed};
    const auto rows = load({}, options).sequences;
    ASSERT_EQ(rows.size(), 16u);
    EXPECT_EQ(rows, load({}, options).sequences);
    auto from = all.begin();
    std::ptrdiff_t last = -1;
    for (const auto& row : rows) {
      from = std::find(from, all.end(), row);
      ASSERT_NE(from, all.end());
      const std::ptrdiff_t index = from++ - all.begin();
      const auto step = static_cast<std::ptrdiff_t>(all.size() / 16);
      EXPECT_TRUE(last < 0 || index - last == step || index - last == step + 1) << index - last;
      last = index;
    }
    choices.insert(rows);
  }
  EXPECT_GT(choices.size(), 4u);
}

TEST_F(Text, TokenFilesKeepTheirRows) {
  const TokenSet written =
      load({file("a.txt", "Once upon a time, there was")}, {.num_sequences = 0, .seq_len = 4});
  const auto path = directory_ / "tokens.h5";
  write_token_set(path, written);
  const TokenSet read = load({path}, {.num_sequences = 1, .seq_len = 9});
  EXPECT_EQ(read.sequences, written.sequences);
  EXPECT_EQ(read.source_hashes, written.source_hashes);

  TokenSet evaluation = written;
  evaluation.split = "evaluation";
  write_token_set(directory_ / "evaluation.h5", evaluation);
  EXPECT_THROW(load({directory_ / "evaluation.h5"}, {}), Error);

  const Tokenizer other = Tokenizer::load(std::filesystem::path(KVC_TEST_DATA) / "reference-llama");
  EXPECT_THROW(load_token_set({path}, other, 2048, {}, "calibration"), Error);
}

TEST_F(Text, UnusableFilesAreNamed) {
  EXPECT_THAT(message_of(directory_ / "missing.txt"), HasSubstr("no such file"));
  EXPECT_THAT(message_of(directory_), HasSubstr("is a directory, expected .txt, .jsonl or .h5"));
  EXPECT_THAT(message_of(file("a.pdf", "x")), HasSubstr("expected .txt, .jsonl or .h5"));
  EXPECT_THAT(message_of(file("empty.txt", "")), HasSubstr("holds no text"));
  EXPECT_THAT(message_of(file("blank.txt", " \n\t\u3000 ")), HasSubstr("holds no text"));
  EXPECT_THAT(message_of(file("empty.jsonl", "\n\n")), HasSubstr("holds no text"));
  EXPECT_THAT(message_of(file("blank.jsonl", "{\"text\": \"\"}")), HasSubstr("holds no text"));
  EXPECT_THAT(message_of(file("zero.txt", std::string("a\0b", 3))), HasSubstr("byte 1 is zero"));
  EXPECT_THAT(message_of(file("latin1.txt", "caf\xE9")), HasSubstr("byte 3 is not UTF-8"));
}

TEST_F(Text, BadRecordsAreNamedByLine) {
  const std::string good = "{\"text\": \"a\"}\n";
  EXPECT_THAT(message_of(file("a.jsonl", good + "{\"text\": ")),
              HasSubstr("a.jsonl:2: not a JSON"));
  EXPECT_THAT(message_of(file("b.jsonl", good + "\n[1]")),
              HasSubstr("b.jsonl:3: not a JSON object"));
  EXPECT_THAT(message_of(file("c.jsonl", "{\"t\": 1}\n")), HasSubstr("c.jsonl:1: no \"text\""));
  EXPECT_THAT(message_of(file("d.jsonl", "{\"text\": 1}\n")), HasSubstr("d.jsonl:1: no \"text\""));
}

TEST_F(Text, OptionsAndVocabularyAreChecked) {
  EXPECT_THROW(load({}, {.num_sequences = -1, .seq_len = 8}), UsageError);
  EXPECT_THROW(load({}, {.num_sequences = 1, .seq_len = 1}), UsageError);
  EXPECT_NO_THROW(load({}, {.num_sequences = 1, .seq_len = 2}));
  EXPECT_THROW(load({}, {.num_sequences = 0, .seq_len = 64}, 300), Error);
}

TEST(BuiltinText, PiecesAreDisjoint) {
  const std::string_view calibration = builtin_calibration_text();
  const std::string_view evaluation = builtin_evaluation_text();
  EXPECT_GT(calibration.size(), 190'000u);
  EXPECT_GT(evaluation.size(), 90'000u);
  EXPECT_TRUE(calibration.starts_with("Letter 1\nTo Mrs. Saville, England."));
  for (std::size_t begin = 0; begin + 200 <= evaluation.size(); begin += 200) {
    ASSERT_EQ(calibration.find(evaluation.substr(begin, 200)), std::string_view::npos);
  }
}

}  // namespace
}  // namespace kvc
