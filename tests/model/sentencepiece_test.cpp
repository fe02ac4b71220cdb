// Checkpoints with a tokenizer.model alone: damaged files, settings that are refused.
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <cstdint>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "model/tokenizer/sentencepiece_split.h"
#include "model/tokenizer/tokenizer.h"
#include "tests/testing/error_of.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kData = fs::path(KVC_TEST_DATA) / "tokenizer";

std::string read_all(const fs::path& file) {
  std::ifstream stream(file, std::ios::binary);
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

class SentencepieceFiles : public ::testing::Test {
 protected:
  void SetUp() override { fs::create_directories(directory_); }
  void TearDown() override { fs::remove_all(directory_); }
  void write(const std::string& name, const std::string& bytes) {
    std::ofstream(directory_ / name, std::ios::binary) << bytes;
  }
  void copy(const std::string& name, const std::string& from) {
    fs::copy_file(kData / from / name, directory_ / name, fs::copy_options::overwrite_existing);
  }
  std::string error() {
    return error_of([&] { Tokenizer::load(directory_); });
  }
  const fs::path directory_ =
      fs::temp_directory_path() / ("kvc_sentencepiece_" + std::to_string(::getpid()));
};

TEST_F(SentencepieceFiles, TokenizerJsonHasPriority) {
  const fs::path other = fs::path(KVC_TEST_DATA) / "stories260K-hf";
  copy("tokenizer.model", "sentencepiece_llama");
  copy("tokenizer_config.json", "sentencepiece_llama");
  EXPECT_EQ(Tokenizer::load(directory_).hash(), Tokenizer::hash_of(directory_));
  EXPECT_EQ(Tokenizer::load(directory_).hash(),
            Tokenizer::load(kData / "sentencepiece_llama").hash());
  fs::copy_file(other / "tokenizer.json", directory_ / "tokenizer.json");
  EXPECT_EQ(Tokenizer::load(directory_).hash(), Tokenizer::load(other).hash());
}

TEST_F(SentencepieceFiles, TheHashCoversTheSettings) {
  copy("tokenizer.model", "sentencepiece_llama");
  write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "legacy": false})");
  const std::string hash = Tokenizer::hash_of(directory_);
  write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer", "legacy": true})");
  EXPECT_NE(Tokenizer::hash_of(directory_), hash);
}

TEST_F(SentencepieceFiles, RefusesOtherTokenizersByName) {
  copy("tokenizer.model", "sentencepiece_llama");
  write("tokenizer_config.json", R"({"tokenizer_class": "XLNetTokenizer"})");
  EXPECT_THAT(error(), HasSubstr("XLNetTokenizer"));
  write("tokenizer_config.json", "{}");
  EXPECT_THAT(error(), HasSubstr("supported: LlamaTokenizer, GemmaTokenizer"));
  write("config.json", R"({"model_type": "mistral"})");
  EXPECT_EQ(error(), "");
  write("tokenizer_config.json", R"({"sp_model_kwargs": {"enable_sampling": true}})");
  EXPECT_THAT(error(), HasSubstr("sp_model_kwargs"));
}

TEST_F(SentencepieceFiles, RefusesWhatIsNoModel) {
  write("tokenizer_config.json", R"({"tokenizer_class": "LlamaTokenizer"})");
  for (const std::string bytes : {"", "hello", "\n", "\xFF\xFF\xFF\xFF"}) {
    write("tokenizer.model", bytes);
    EXPECT_THAT(error(), HasSubstr("tokenizer.model")) << bytes;
  }
  const std::string model = read_all(kData / "sentencepiece_nfkc" / "tokenizer.model");
  write("tokenizer.model", model.substr(0, model.size() / 2));
  EXPECT_THAT(error(), HasSubstr("damaged"));
}

// The first unit of the normalizer's trie is followed without a look at its label.
TEST_F(SentencepieceFiles, RefusesATrieThatBeginsOutsideItself) {
  copy("tokenizer_config.json", "sentencepiece_nfkc");
  const std::string model = read_all(kData / "sentencepiece_nfkc" / "tokenizer.model");
  constexpr std::uint32_t kTrieBytes = 179200;
  const std::size_t place =
      model.find(std::string(reinterpret_cast<const char*>(&kTrieBytes), sizeof kTrieBytes));
  ASSERT_NE(place, std::string::npos);
  write("tokenizer.model", model);
  EXPECT_EQ(error(), "");
  for (const std::uint32_t first : {0xffffffffu, 0xfffffe00u, 0x80000000u}) {
    std::string damaged = model;
    std::memcpy(damaged.data() + place + sizeof kTrieBytes, &first, sizeof first);
    write("tokenizer.model", damaged);
    EXPECT_THAT(error(), HasSubstr("the normalizer's table is damaged")) << first;
  }
}

// Changed bytes anywhere: a message or a tokenizer that works, never a crash.
TEST_F(SentencepieceFiles, SurvivesDamage) {
  std::mt19937 random(1);
  int refused = 0;
  for (const char* name : {"sentencepiece_llama", "sentencepiece_nfkc", "sentencepiece_unigram"}) {
    copy("tokenizer_config.json", name);
    const std::string model = read_all(kData / name / "tokenizer.model");
    for (int i = 0; i < 60; ++i) {
      std::string damaged = model;
      for (int change = 0; change < 1 + i % 5; ++change) {
        damaged[random() % damaged.size()] = static_cast<char>(random());
      }
      if (i % 7 == 0) damaged.resize(random() % damaged.size());
      write("tokenizer.model", damaged);
      try {
        const Tokenizer tokenizer = Tokenizer::load(directory_);
        tokenizer.decode(
            tokenizer.encode("Once upon a time \xEF\xBC\xA8\xE2\x91\xA0 caf\xC3\xA9 <s>"));
      } catch (const Error& error) {
        ++refused;
        EXPECT_THAT(error.what(), HasSubstr("tokenizer.model"));
      }
    }
  }
  EXPECT_GT(refused, 20);
}

TEST(TokenTrie, CutsTheLeftmostAndLongest) {
  TokenTrie trie;
  for (const char32_t* token : {U"[CLS]", U"extra_id_1", U"extra_id_100", U"L"}) trie.add(token);
  EXPECT_THAT(trie.split(U"[CLS] This is a extra_id_100"),
              ::testing::ElementsAre(U"[CLS]", U" This is a ", U"extra_id_100"));
  EXPECT_THAT(trie.split(U"xL"), ::testing::ElementsAre(U"x", U"L"));
  EXPECT_TRUE(trie.split(U"").empty());
}

}  // namespace
}  // namespace kvc
