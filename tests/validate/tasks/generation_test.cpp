#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <regex>
#include <string_view>

#include "core/error.h"
#include "core/hash.h"
#include "tests/testing/error_of.h"
#include "tests/validate/tasks/task_fixture.h"
#include "validate/tasks/text_words.h"

namespace kvc::testing {
namespace {

using ::testing::HasSubstr;

constexpr std::int64_t kLength = 1024;

std::string whole_text(const TaskSample& sample) {
  std::string text = sample.context;
  for (const TaskQuestion& question : sample.questions) {
    text += "\n<question>" + plain_text(question);
    for (const std::string& answer : question.answers) {
      text += "\n<answer>" + answer;
    }
  }
  return text;
}

TEST(TaskGeneration, ASeedFixesEveryByte) {
  const std::map<std::string, std::string> golden = {
      {"passkey", "f03206219586824e"},
      {"recall", "2ed89036913e1509"},
      {"copying", "44db9254bb577eeb"},
      {"niah_single_1", "2eea8f8354fb9781"},
      {"niah_single_2", "b3c8e40b78375f0b"},
      {"niah_single_3", "1ce22f15f4101b5f"},
      {"niah_multikey_1", "c32bb60e43a50d4f"},
      {"niah_multikey_2", "3378a4b16f9a56d7"},
      {"niah_multikey_3", "2ed33208e3108904"},
      {"niah_multivalue", "e626c34790a4bd0b"},
      {"niah_multiquery", "41342399bf5b098d"},
      {"vt", "fbea8c57cfbb148e"},
      {"cwe", "c80489cbb26dbe65"},
      {"fwe", "8b70a41add8cbda5"},
  };
  const Tokenizer tokenizer = bundled_tokenizer();
  for (const std::string& name : built_in_tasks()) {
    const Task task = built_in_task(name);
    const std::string text = whole_text(make_sample(task, {tokenizer}, kLength, false, 7, 3));
    const auto hash = golden.find(name);
    EXPECT_EQ(sha256_hex(text).substr(0, 16), hash == golden.end() ? "" : hash->second) << name;
    EXPECT_EQ(text, whole_text(make_sample(task, {tokenizer}, kLength, false, 7, 3))) << name;
    EXPECT_NE(text, whole_text(make_sample(task, {tokenizer}, kLength, false, 7, 4))) << name;
    EXPECT_NE(text, whole_text(make_sample(task, {tokenizer}, kLength, false, 8, 3))) << name;
  }
}

TEST(TaskGeneration, DepthsAreWhereWhatIsAskedForBegins) {
  const Tokenizer tokenizer = bundled_tokenizer();
  for (const auto& [name, words] : {std::pair("passkey", "The pass key is"),
                                    {"niah_single_1", "The secret "},
                                    {"niah_single_2", "The secret "},
                                    {"niah_multivalue", "The secret "},
                                    {"vt", "VAR "},
                                    {"recall", "\nRemember:"}}) {
    const TaskSample sample = make_sample(built_in_task(name), {tokenizer}, kLength, false, 7, 3);
    ASSERT_FALSE(sample.depths.empty()) << name;
    for (const double depth : sample.depths) {
      const auto begin = std::llround(depth * static_cast<double>(sample.context.size()));
      EXPECT_TRUE(std::string_view(sample.context)
                      .substr(static_cast<std::size_t>(begin))
                      .starts_with(words))
          << name << " at " << depth;
    }
  }
}

// docs/tasks.md states these: the tokens of one unit more, and what a sample's own words add to them.
std::int64_t length_bound(const std::string& task) {
  if (task == "niah_multikey_2") {
    return 64;
  }
  if (task == "niah_multikey_3") {
    return 160;
  }
  return 32;
}

void expect_length(const std::string& name, const Tokenizer& tokenizer, std::int64_t length,
                   bool questions_after) {
  const Task task = built_in_task(name);
  for (std::int64_t index = 0; index < 3; ++index) {
    const TaskSample sample = make_sample(task, {tokenizer}, length, questions_after, 1, index);
    const std::int64_t tokens =
        prompt_tokens({tokenizer}, sample, questions_after || task.questions_after) +
        task.max_new_tokens;
    EXPECT_LE(tokens, length) << name;
    EXPECT_GT(tokens, length - length_bound(name)) << name << " at " << length;
    for (const double depth : sample.depths) {
      EXPECT_GE(depth, 0) << name;
      EXPECT_LT(depth, 1) << name;
    }
  }
}

TEST(TaskGeneration, LengthsAreMet) {
  for (const char* model : {"reference-llama", "stories260K-hf"}) {
    const Tokenizer tokenizer = bundled_tokenizer(model);
    for (const std::string& name : built_in_tasks()) {
      expect_length(name, tokenizer, 1500, false);
      expect_length(name, tokenizer, 5000, true);
    }
  }
}

TEST(TaskGeneration, ALengthThatIsTooShortIsRefusedWithTheLeast) {
  const Tokenizer tokenizer = bundled_tokenizer();
  for (const std::string& name : built_in_tasks()) {
    const Task task = built_in_task(name);
    const std::string message = error_of([&] { make_sample(task, {tokenizer}, 10, false, 0, 0); });
    EXPECT_THAT(message, HasSubstr("--task-length 10: " + name + " takes at least "));
    std::smatch found;
    ASSERT_TRUE(std::regex_search(message, found, std::regex("at least (\\d+) tokens"))) << message;
    // What it names suffices but for the sample's random numbers, which depend on the length.
    EXPECT_NO_THROW(make_sample(task, {tokenizer}, std::stoll(found[1]) + 40, false, 0, 0)) << name;
  }
}

TEST(TaskGeneration, TheLeastLengthIsThatOfEverySample) {
  const Tokenizer tokenizer = bundled_tokenizer();
  for (const std::string& name : built_in_tasks()) {
    const Task task = built_in_task(name);
    for (std::int64_t index = 0; index < 8; ++index) {
      const auto fits = [&](std::int64_t length) {
        return least_length(task, {tokenizer}, length, false, 0, index) <= length;
      };
      std::int64_t length = 10;
      while (!fits(length)) {
        length = least_length(task, {tokenizer}, length, false, 0, index);
      }
      EXPECT_NO_THROW(make_sample(task, {tokenizer}, length, false, 0, index)) << name;
      EXPECT_THROW(make_sample(task, {tokenizer}, 10, false, 0, index), Error) << name;
    }
  }
}

// Readers that know nothing but the prompt.

std::vector<std::string> all_matches(const std::string& text, const std::string& pattern) {
  const std::regex regex(pattern);
  std::vector<std::string> matches;
  for (std::sregex_iterator match(text.begin(), text.end(), regex), end; match != end; ++match) {
    matches.push_back((*match)[1]);
  }
  return matches;
}

std::string join_words(const std::vector<std::string>& words) {
  std::string text;
  for (const std::string& word : words) {
    text += word + " ";
  }
  return text;
}

// Values of every key that the question names.
std::string read_needles(const TaskSample& sample) {
  const std::string asked = plain_text(sample.questions.front());
  std::vector<std::string> values;
  for (const std::string& key :
       all_matches(asked.substr(asked.find('?')), "([0-9a-z]+(?:-[0-9a-z]+)+)")) {
    for (const std::string& value :
         all_matches(sample.context, "secret \\w+ of " + key + " is: ([0-9a-f-]+)\\.")) {
      values.push_back(value);
    }
  }
  return join_words(values);
}

std::string read_variables(const TaskSample& sample) {
  const std::string text = sample.context.substr(sample.context.rfind("Follow the assignments"));
  const std::string value =
      all_matches(sample.questions.front().text, "have the value (\\d+)").at(0);
  std::vector<std::string> names = all_matches(text, "VAR (\\w+) = " + value);
  for (std::size_t i = 0; i < names.size(); ++i) {
    for (const std::string& name : all_matches(text, "VAR (\\w+) = VAR " + names[i])) {
      names.push_back(name);
    }
  }
  return join_words(names);
}

// The `count` words that occur most often, without a tie behind them.
std::string read_counts(const std::vector<std::string>& words, std::size_t count) {
  std::map<std::string, int> counts;
  for (const std::string& word : words) {
    ++counts[word];
  }
  std::vector<std::pair<int, std::string>> sorted;
  for (const auto& [word, times] : counts) {
    sorted.emplace_back(times, word);
  }
  std::sort(sorted.rbegin(), sorted.rend());
  EXPECT_GT(sorted.at(count - 1).first, sorted.at(count).first);
  std::string text;
  for (std::size_t i = 0; i < count; ++i) {
    text += sorted[i].second + " ";
  }
  return text;
}

std::string solve(const std::string& name, const TaskSample& sample, const TaskQuestion& question) {
  if (name.starts_with("niah")) {
    return read_needles(sample);
  }
  if (name == "passkey") {
    return all_matches(sample.context, "(\\d+) is the pass key").at(0);
  }
  if (name == "vt") {
    return read_variables(sample);
  }
  if (name == "cwe") {
    return read_counts(
        all_matches(sample.context.substr(sample.context.rfind("Some words")), "\\d+\\. ([a-z]+)"),
        10);
  }
  if (name == "fwe") {
    return read_counts(all_matches(sample.context.substr(sample.context.find('\n')), "([a-z]+)"),
                       3);
  }
  std::string given = plain_text(question);
  if (name == "recall") {
    const std::size_t comma = given.rfind(", ");
    given = given.substr(comma == std::string::npos ? std::string("\nRecall: ").size() : comma + 2);
  }
  const std::size_t place = sample.context.find(given);
  EXPECT_NE(place, std::string::npos);
  EXPECT_EQ(sample.context.find(given, place + 1), std::string::npos) << "ambiguous";
  return sample.context.substr(place + given.size(), 60);
}

TEST(TaskGeneration, WhoReadsThePromptScores100) {
  const Tokenizer tokenizer = bundled_tokenizer();
  for (const std::string& name : built_in_tasks()) {
    const Task task = built_in_task(name);
    for (const std::int64_t length : {1024, 8192}) {
      for (std::int64_t index = 0; index < 3; ++index) {
        const TaskSample sample = make_sample(task, {tokenizer}, length, false, 5, index);
        for (const TaskQuestion& question : sample.questions) {
          const std::string output = solve(name, sample, question);
          EXPECT_EQ(task.score(output, question), 100) << name << ": " << output;
          EXPECT_EQ(task.score("Nobody knows.", question), 0) << name;
        }
      }
    }
  }
}

TEST(TaskGeneration, RulersSettings) {
  const Tokenizer tokenizer = bundled_tokenizer();
  const auto num_answers = [&](const std::string& name) {
    return make_sample(built_in_task(name), {tokenizer}, 2048, false, 0, 0)
        .questions.front()
        .answers.size();
  };
  EXPECT_EQ(num_answers("niah_single_1"), 1u);
  EXPECT_EQ(num_answers("niah_multikey_1"), 1u);
  EXPECT_EQ(num_answers("niah_multivalue"), 4u);
  EXPECT_EQ(num_answers("niah_multiquery"), 4u);
  EXPECT_EQ(num_answers("vt"), 5u);
  EXPECT_EQ(num_answers("cwe"), 10u);
  EXPECT_EQ(num_answers("fwe"), 3u);
  EXPECT_EQ(built_in_task("niah_single_1").max_new_tokens, 128);
  EXPECT_EQ(built_in_task("vt").max_new_tokens, 30);
  EXPECT_EQ(built_in_task("cwe").max_new_tokens, 120);
  EXPECT_EQ(built_in_task("fwe").max_new_tokens, 50);
}

// The words of a list are enough for 128k tokens, and nothing is a part of what is asked for.
TEST(TaskGeneration, WordsNeverRunOut) {
  WordSupply words(TaskRandom(3));
  const std::vector<std::string> asked = words.apart(10);
  std::map<std::string, int> seen;
  for (int i = 0; i < 30000; ++i) {
    const std::string word = words.next();
    EXPECT_EQ(++seen[word], 1) << word;
    for (const std::string& other : asked) {
      EXPECT_EQ(word.find(other), std::string::npos);
    }
  }
}

TEST(TaskChoice, UnknownNamesListTheKnown) {
  try {
    choose_tasks({"niah"}, read_task_inputs({}));
    ADD_FAILURE() << "no error";
  } catch (const UsageError& error) {
    EXPECT_THAT(error.what(), HasSubstr("unknown task 'niah'; known: passkey, recall, copying, "
                                        "ruler, niah_single_1"));
  }
}

}  // namespace
}  // namespace kvc::testing
