// A checkpoint's chat template: where it is found, what it renders, what is refused. That the
// language equals Jinja2's is tested in tests/python/chat_template_test.py.
#include "model/chat/chat_template.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "core/error.h"
#include "tests/testing/error_of.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;
using ::testing::AnyOf;
using ::testing::HasSubstr;

const std::vector<ChatMessage> kTurns = {
    {"system", "Be brief."}, {"user", "Hi"}, {"assistant", "Yes?"}, {"user", "Bye"}};

std::string render(const std::string& source, const Json& variables = Json::object()) {
  return ChatTemplate(source, Json::object(), "t").render(variables, 0);
}

std::string render_error(const std::string& source) {
  return error_of([&] { render(source); });
}

class ChatDirectory : public ::testing::Test {
 protected:
  void write(const std::string& name, const std::string& text) {
    std::ofstream(directory_ / name) << text;
  }
  std::string rendered() {
    return ChatTemplate::load(directory_, "Pass one with --chat-template")
        .render(kTurns, Json::object(), 0);
  }
  void SetUp() override { fs::create_directories(directory_); }
  void TearDown() override { fs::remove_all(directory_); }
  const fs::path directory_ =
      fs::temp_directory_path() / ("kvc_chat_" + std::to_string(::getpid()));
};

TEST_F(ChatDirectory, PrefersTheFileOverTheConfig) {
  write("tokenizer_config.json", R"({"chat_template": "config", "bos_token": "<b>"})");
  EXPECT_EQ(rendered(), "config");
  write("chat_template.jinja",
        "{{ bos_token }}{{ messages[3].content }}{{ add_generation_prompt }}");
  EXPECT_EQ(rendered(), "<b>ByeTrue");
}

TEST_F(ChatDirectory, TakesTheDefaultOfSeveral) {
  write(
      "tokenizer_config.json",
      R"({"chat_template": [{"name": "tool_use", "template": "t"}, {"name": "default", "template": "d{{ eos_token }}"}],
            "eos_token": {"content": "<e>", "__type": "AddedToken"}})");
  EXPECT_EQ(rendered(), "d<e>");
  write("tokenizer_config.json", R"({"chat_template": [{"name": "rag", "template": "t"}]})");
  EXPECT_THROW(rendered(), Error);
}

TEST_F(ChatDirectory, SaysTheWayOutWithoutATemplate) {
  EXPECT_THAT(error_of([&] { rendered(); }), HasSubstr("--chat-template"));
}

TEST(ChatTemplate, RendersAConversation) {
  const ChatTemplate chat = ChatTemplate::read(fs::path(KVC_TEST_DATA) / "chat" / "llama2.jinja",
                                               fs::path(KVC_TEST_DATA) / "stories260K-hf");
  EXPECT_EQ(chat.render(kTurns, Json::object(), 0),
            "<s>[INST] <<SYS>>\nBe brief.\n<</SYS>>\n\nHi [/INST] Yes? </s><s>[INST] Bye [/INST]");
  EXPECT_THAT(error_of([&] {
                chat.render({kTurns[1], kTurns[1]}, Json::object(), 0);
              }),
              HasSubstr("Conversation roles must alternate"));
}

TEST(ChatTemplate, FollowsTheRulesForWhiteSpace) {
  EXPECT_EQ(render("a\n  {% if true %}\n b\n  {% endif %}\nc\n"), "a\n b\nc");
  EXPECT_EQ(render("x {{- 1 -}} \n y {#- n -#} z"), "x1yz");
}

TEST(ChatTemplate, NamesTheLineOfAnError) {
  EXPECT_THAT(render_error("a\n\n{% include 'x' %}"), HasSubstr("line 3: the tag 'include'"));
  EXPECT_THAT(render_error("\n{{ 1 | nofilter }}"), HasSubstr("line 2: the filter 'nofilter'"));
  EXPECT_THAT(render_error("{{ x.y }}"), HasSubstr("'x' is not defined"));
  EXPECT_THAT(render_error("{% if true %}\n"), HasSubstr("expected endif"));
}

TEST(ChatTemplate, EndsWhateverTheTemplateAsksFor) {
  EXPECT_THAT(render_error(
                  "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}"),
              HasSubstr("does not end"));
  EXPECT_THAT(render_error("{{ 'a' * 10000000000 }}"), HasSubstr("too many"));
  EXPECT_THAT(render_error("{% set ns = namespace(t='abcdefgh') %}{% for a in range(99) %}"
                           "{% set ns.t = ns.t + ns.t %}{% endfor %}"),
              HasSubstr("bytes of text"));
  EXPECT_THAT(render_error("{% macro m(x) %}{{ m(x) }}{% endmacro %}{{ m(1) }}"),
              HasSubstr("nested too deeply"));
  EXPECT_THAT(render_error("{% set ns = namespace(l=[]) %}{% for a in range(999) %}"
                           "{% set ns.l = [ns.l] %}{% endfor %}"),
              HasSubstr("levels"));
  EXPECT_THAT(render_error("{{ " + std::string(9999, '(') + "1" + std::string(9999, ')') + " }}"),
              HasSubstr("levels"));
  EXPECT_THAT(render_error("{{ " + std::string(100000, '-') + "1 }}"), HasSubstr("too many signs"));
  const std::string loop = "{% set s = 'a' * 50000000 %}{% for i in range(100000) %}";
  for (const char* body :
       {"{% if s.find('b') > 0 %}x{% endif %}", "{{ s | length }}", "{{ s[-1] }}",
        "{% if s is lower %}{% endif %}", "{% if s == s + '' %}{% endif %}"}) {
    EXPECT_THAT(render_error(loop + body + "{% endfor %}"),
                AnyOf(HasSubstr("does not end"), HasSubstr("bytes of text")))
        << body;
  }
  EXPECT_THAT(render_error("{{ (['a'] * 200000000) | length }}"), HasSubstr("bytes of text"));
  EXPECT_THAT(render_error("{{ (',' * 100000000).split(',') | length }}"),
              HasSubstr("bytes of text"));
  EXPECT_THAT(render_error("{{ [[[1]]] | tojson(indent='a' * 90000000) }}"),
              HasSubstr("bytes of text"));
  EXPECT_THAT(render_error("{{ strftime_now('a' * 5000) }}"), HasSubstr("at most 4096"));
  EXPECT_THAT(render_error("{{ ('a' * 30000000)[::2] }}"), HasSubstr("bytes of text"));
  EXPECT_THAT(render_error("{% for c in 'a' * 30000000 %}{% endfor %}"),
              HasSubstr("bytes of text"));
}

// Products of lengths would take minutes here, beyond the test's time limit, and copies of texts 2 GB.
TEST(ChatTemplate, SearchesInTimeOfTheSumOfLengths) {
  const std::string texts = "{% set a = 'a' * 3000000 %}{% set b = 'a' * 1500000 %}";
  for (const auto& [expression, expected] :
       {std::pair{"b ~ 'b' in a", "False"},
        {"a.find(b ~ 'b')", "-1"},
        {"a.find(b)", "0"},
        {"a.rfind('b' ~ b)", "-1"},
        {"a.rfind(b)", "1500000"},
        {"a.count(b ~ 'b')", "0"},
        {"a.count(b)", "2"},
        {"a.replace(b ~ 'b', '') | length", "3000000"},
        {"a.split(b ~ 'b') | length", "1"},
        {"(a ~ 'b').rsplit(b, 1) | map('length') | list", "[1500000, 1]"},
        {"a.strip('b' * 3000000 ~ 'a') | length", "0"},
        {"('a ' * 1000000).split() | length", "1000000"},
        {"('a ' * 1000000).rsplit() | length", "1000000"},
        {"(['x' * 1000000] * 2000) | length", "2000"}}) {
    EXPECT_EQ(render(texts + "{{ " + expression + " }}"), expected) << expression;
  }
  std::string large = "{% set d = {";
  for (int i = 0; i < 50000; ++i) {
    large += fmt::format("'k{}': {}, ", i, i);
  }
  EXPECT_EQ(
      render(large +
             "} %}{% set ns = namespace(n=0) %}{% for i in range(99999) %}{% if 'k' ~ i in d %}"
             "{% set ns.n = ns.n + 1 %}{% endif %}{% endfor %}{{ ns.n }}"),
      "50000");
}

TEST(ChatTemplate, CountsCharactersNotBytes) {
  EXPECT_EQ(render("{{ 'aé☃b' | length }} {{ 'aé☃b'[2] }} {{ 'aé☃b'[-3] }} {{ 'aé☃b'[1:3] }} {{ "
                   "'aé☃b'[::-1] }}"),
            "4 ☃ é é☃ b☃éa");
  EXPECT_EQ(render("{{ 'é'[1] is defined }} {{ 'é'[-2] is defined }} {{ ''[0] is defined }}"),
            "False False False");
}

TEST(ChatTemplate, ReadsNumbersAsPythonDoes) {
  EXPECT_EQ(
      render("{{ '+1.5' | float }} {{ ' +7 ' | int }} {{ '2.9' | int }} {{ '1e400' | int(3) }} "
             "{{ '+-1' | int(4) }}"),
      "1.5 7 2 3 4");
  EXPECT_THAT(render_error("{{ '99999999999999999999' | int }}"), HasSubstr("does not fit"));
}

TEST(ChatTemplate, FormatsNamedAndUnnamedFields) {
  EXPECT_EQ(render(R"({{ "{a} {} {}".format("p", "q", a="y") }} {{ "{} {1}".format("p", "q") }})"),
            "y p q p q");
}

TEST(ChatTemplate, WritesDatesOfAnyLength) {
  const std::string format(400, '-');
  EXPECT_EQ(render("{{ strftime_now('%Y" + format + "') }}"), "1970" + format);
}

TEST(ChatTemplate, RefusesEscapesThatAreNone) {
  EXPECT_THAT(render_error(R"({{ "\x+1" }})"), HasSubstr("malformed escape"));
  EXPECT_THAT(render_error(R"({{ "\x 1" }})"), HasSubstr("malformed escape"));
}

TEST(ChatTemplate, RefusesMessagesThatAreNotUtf8) {
  const ChatTemplate chat("{{ messages[1].content | length }}", Json::object(), "t");
  for (const char* text : {"hi\xff", "hi\xe2\x98"}) {
    EXPECT_THAT(error_of([&] {
                  chat.render({{"system", "Be brief."}, {"user", text}}, Json::object(), 0);
                }),
                HasSubstr("the user's message: byte 2 is not UTF-8"))
        << text;
  }
}

}  // namespace
}  // namespace kvc
