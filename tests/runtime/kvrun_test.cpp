// The program itself.
#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>

#include <array>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

#include "core/json.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/text_stream.h"
#include "tests/testing/temporary_directory.h"
#include "tests/testing/tensor_matchers.h"
#include "tests/testing/test_tensors.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using ::testing::HasSubstr;

const fs::path kStories = fs::path(KVC_TEST_DATA) / "stories260K-hf";

struct Outcome {
  int code = 0;
  std::string output;  // standard output, or both with errors
};

Outcome kvrun(const std::string& arguments, bool with_errors = false) {
  const std::string command =
      fmt::format("{}/kvrun {} {}", KVC_BIN_DIR, arguments, with_errors ? "2>&1" : "2>/dev/null");
  std::FILE* pipe = ::popen(command.c_str(), "r");
  Outcome outcome;
  std::array<char, 4096> buffer;
  for (std::size_t count = 0; (count = std::fread(buffer.data(), 1, buffer.size(), pipe)) > 0;) {
    outcome.output.append(buffer.data(), count);
  }
  outcome.code = WEXITSTATUS(::pclose(pipe));
  return outcome;
}

std::string read_text(const fs::path& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

TEST(Kvrun, ContinuesAPublicModelsStoryExactly) {
  const Outcome outcome =
      kvrun(fmt::format("{} --prompt 'Once upon a time' --max-new-tokens 256", kStories.string()));
  EXPECT_EQ(outcome.code, 0);
  EXPECT_EQ(outcome.output, read_text(kStories / "expected_greedy.txt") + "\n");
}

TEST(Kvrun, JsonHoldsTokensTextAndBytes) {
  const Outcome outcome = kvrun(
      fmt::format("{} --prompt 'Once upon a time' --max-new-tokens 40 --json", kStories.string()));
  const Json golden = read_json(kStories / "golden_ids.json");
  const Json json = parse_json(outcome.output, "kvrun");
  const auto tokens = golden.at("greedy_ids").get<std::vector<std::int64_t>>();
  EXPECT_EQ(json.at("tokens").get<std::vector<std::int64_t>>(),
            std::vector<std::int64_t>(tokens.begin(), tokens.begin() + 40));
  EXPECT_EQ(read_text(kStories / "expected_greedy.txt").find(json.at("text").get<std::string>()),
            0u);
  EXPECT_EQ(json.at("kv").at("tokens"), 44);  // 5 of the prompt; the 40th new one is not fed
  EXPECT_EQ(json.at("kv").at("bytes"), 2 * 5 * 32 * 4 * 48);  // in pages of 16 tokens
  EXPECT_EQ(json.at("kv").at("kept_ratio"), 1.0);
  EXPECT_EQ(json.at("timing").at("decode_tokens"), 39);
}

TEST(Kvrun, BatchOfIdsGivesLists) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "ids.json") << "[[1, 403, 407, 261, 378], [1, 403]]";
  const Outcome outcome = kvrun(fmt::format("{} --ids {} --max-new-tokens 5 --json",
                                            kStories.string(), (directory / "ids.json").string()));
  const Json json = parse_json(outcome.output, "kvrun");
  EXPECT_EQ(json.at("tokens").at(0), Json::parse("[432, 383, 286, 261, 376]"));
  EXPECT_EQ(json.at("tokens").at(1).size(), 5u);
  EXPECT_EQ(json.at("text").size(), 2u);
  EXPECT_EQ(json.at("kv").at(1).at("tokens"), 6);
}

TEST(Kvrun, LogitsCoverEveryGivenToken) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "ids.json") << "[1, 403, 407, 261, 378]";
  const auto logits = [&](const std::string& name, const std::string& more) {
    const fs::path file = directory / name;
    const Outcome outcome =
        kvrun(fmt::format("{} --ids {} --max-new-tokens 0 --logits {} {}", kStories.string(),
                          (directory / "ids.json").string(), file.string(), more));
    EXPECT_EQ(outcome.code, 0);
    return testing::read_tensor(file, "logits");
  };
  const at::Tensor once = logits("once.safetensors", "");
  EXPECT_EQ(once.sizes(), (std::vector<std::int64_t>{5, 512}));
  EXPECT_EQ(once[4].argmax().item<std::int64_t>(), 432);
  EXPECT_TRUE(
      testing::tensors_close(logits("parts.safetensors", "--prefill-tokens 2"), once, 1e-4));
}

TEST(Kvrun, TokenizePrintsIds) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "text.txt") << "Once upon a time";
  const Outcome outcome =
      kvrun(fmt::format("{} --tokenize {}", kStories.string(), (directory / "text.txt").string()));
  EXPECT_EQ(outcome.output, "[1,403,407,261,378]\n");
}

TEST(Kvrun, TheSameSeedSamplesTheSameText) {
  const auto sample = [](int seed) {
    return kvrun(fmt::format("{} --prompt Once --max-new-tokens 30 --temperature 1 --seed {}",
                             kStories.string(), seed))
        .output;
  };
  EXPECT_EQ(sample(1), sample(1));
  EXPECT_NE(sample(1), sample(2));
}

TEST(Kvrun, StatsGoToStandardError) {
  const std::string arguments =
      fmt::format("{} --prompt Once --max-new-tokens 3 --stats", kStories.string());
  EXPECT_THAT(kvrun(arguments, true).output, HasSubstr("tokens/s"));
  EXPECT_THAT(kvrun(arguments).output, Not(HasSubstr("tokens/s")));
}

TEST(Kvrun, RefusesUsageThatCannotWork) {
  const std::string model = kStories.string();
  for (const auto& [arguments, word] :
       {std::pair("--prompt x --policy h2p", "--policy"),
        {"--prompt x --memory 10XB", "--memory"},
        {"--prompt x --device gpu", "--device"},
        {"--prompt x --temperature -1", "--temperature"},
        {"--prompt x --ids y.json", "--ids"},
        {"--prompt x --max-new-tokens -1", "--max-new-tokens"},
        {"--prompt x --max-new-tokens 9223372036854775807", "--max-new-tokens"},
        {"--prompt x --page-tokens 0", "--page-tokens"},
        {"--prompt x --kv-dtype int3", "--kv-dtype"},
        {"", "--prompt"}}) {
    const Outcome outcome = kvrun(fmt::format("{} {}", model, arguments), true);
    EXPECT_EQ(outcome.code, 2) << arguments;
    EXPECT_THAT(outcome.output, HasSubstr(word));
  }
}

TEST(Kvrun, SaysHowToGoOnWithoutAGpu) {
  const std::string chat =
      fmt::format("--chat --chat-template {}/chat/llama2.jinja", KVC_TEST_DATA);
  for (const std::string& flags : {std::string(), chat}) {
    const Outcome outcome =
        kvrun(fmt::format("{} --prompt x --device cuda:99 {}", kStories.string(), flags), true);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.output, HasSubstr("--device cuda"));
  }
}

TEST(Kvrun, NamesTheFileThatIsNoText) {
  const testing::TemporaryDirectory directory;
  std::ofstream(directory / "latin1.txt") << "caf\xE9";
  for (const char* option : {"--prompt-file", "--tokenize"}) {
    const Outcome outcome = kvrun(
        fmt::format("{} {} {}", kStories.string(), option, (directory / "latin1.txt").string()),
        true);
    EXPECT_EQ(outcome.code, 1);
    EXPECT_THAT(outcome.output, HasSubstr("latin1.txt: byte 3 is not UTF-8"));
  }
}

// A character that takes several byte tokens appears once, whole.
TEST(TextStream, HoldsIncompleteCharactersBack) {
  const Tokenizer tokenizer = Tokenizer::load(kStories);
  const std::vector<std::int64_t> prompt = tokenizer.encode("Once");
  const std::string text = "Once caf\xC3\xA9 \xE2\x82\xAC";
  const std::vector<std::int64_t> all = tokenizer.encode(text);
  TextStream stream(tokenizer, prompt);
  std::string streamed;
  for (std::size_t i = prompt.size(); i < all.size(); ++i) {
    const std::string piece = stream.push(all[i]);
    EXPECT_EQ(piece.find("\xEF\xBF\xBD"), std::string::npos);
    streamed += piece;
  }
  EXPECT_EQ("Once" + streamed + stream.finish(), text);
}

}  // namespace
}  // namespace kvc
