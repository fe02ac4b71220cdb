#include "core/json.h"

#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::Not;
using ::testing::StartsWith;

std::string parse_error(std::string_view text) {
  return error_of([&] { parse_json(text, "a.json"); });
}

TEST(Json, KeepsNumberKindsAndKeyOrder) {
  const std::string text = R"({
  "rms_norm_eps": 1e-06,
  "initializer_range": 0.02,
  "attention_factor": 64.0,
  "rope_theta": 10000.0,
  "a_theta": 10000,
  "negative": -3,
  "largest": 18446744073709551615,
  "on": true,
  "none": null,
  "name": "café \\ \"x\"",
  "list": [
    1,
    2.5
  ],
  "empty": {},
  "nothing": []
}
)";
  EXPECT_EQ(dump_json(parse_json(text, "a.json")), text);
}

TEST(Json, TurnsIntegersBeyond64BitsIntoFloats) {
  const Json json =
      parse_json(R"({"model_max_length": 1000000000000000019884624838656})", "a.json");
  EXPECT_TRUE(json["model_max_length"].is_number_float());
  EXPECT_EQ(json["model_max_length"].get<double>(), 1e30);
}

TEST(Json, RefusesWhatReadersDisagreeAbout) {
  EXPECT_THAT(parse_error(R"({"a":1,"b":2,"a":3})"),
              AllOf(HasSubstr("a.json"), HasSubstr("\"a\"")));
  EXPECT_EQ(parse_error(R"({"a":{"x":1},"b":{"x":2}})"), "");
  EXPECT_THAT(parse_error("\xEF\xBB\xBF{}"), HasSubstr("byte order mark"));
  EXPECT_THAT(parse_error(std::string_view("{}\0x", 4)), HasSubstr("NUL at byte 2"));
  EXPECT_THAT(parse_error(R"({"a": NaN})"),
              AllOf(HasSubstr("NaN at byte 6"), HasSubstr("replace")));
  EXPECT_THAT(parse_error(R"({"a": Infinity})"), HasSubstr("Infinity"));
  EXPECT_THAT(parse_error(R"({"a": -Infinity})"), HasSubstr("Infinity"));
}

TEST(Json, RefusesInvalidText) {
  for (std::string_view text :
       {"", "{", "{}x", "{\"a\":1,}", "// c\n{}", "{'a':1}", "{\"a\":1e400}", "[\"\xff\"]",
        "[\"\\ud800\"]", "[\"\n\"]", "[01]", "[.5]", "[1.]"}) {
    EXPECT_THAT(parse_error(text), StartsWith("a.json: not valid JSON: ")) << text;
  }
  EXPECT_THAT(parse_error("3"), HasSubstr("expected a JSON object or array, found number"));
}

TEST(Json, QuotesOnlyPrintableStartsOfTheTextInMessages) {
  EXPECT_THAT(parse_error("[\"secret\xff\"]"), AllOf(HasSubstr("line 1"), Not(HasSubstr("\xff"))));
  const std::string key(1000, 'k');
  EXPECT_LT(parse_error(fmt::format(R"({{"{}":1,"{}":2}})", key, key)).size(), 200u);
  EXPECT_EQ(excerpt("caf\u00e9\n\x7f"), "\"caf\\u00e9\\n\\u007f\"");
}

TEST(Json, WritesNamesThatAreNotUtf8) {
  EXPECT_EQ(dump_json({{"path", "m\xe8"}}), "{\n  \"path\": \"m\uFFFD\"\n}\n");
}

TEST(Json, CapsTheDepth) {
  EXPECT_EQ(parse_error(std::string(64, '[') + std::string(64, ']')), "");
  EXPECT_THAT(parse_error(std::string(65, '[') + std::string(65, ']')), HasSubstr("64 levels"));
  EXPECT_THAT(parse_error(std::string(1'000'000, '[')), HasSubstr("64 levels"));
}

TEST(Json, StreamsTheMembersOfAnObject) {
  std::vector<std::string> seen;
  const auto visit = [&](std::string&& key, Json&& value) { seen.push_back(key + value.dump()); };
  parse_json_members(R"({"b":[1,{"x":2}],"a":{"c":{}}, "d":null})", "a.json", visit);
  EXPECT_THAT(seen, ElementsAre("b[1,{\"x\":2}]", "a{\"c\":{}}", "dnull"));
  EXPECT_THAT(error_of([&] { parse_json_members(R"({"b":1,"b":2})", "a.json", visit); }),
              HasSubstr("appears twice"));
  EXPECT_THAT(error_of([&] { parse_json_members("[1]", "a.json", visit); }), HasSubstr("object"));
}

class JsonFile : public FilesTest {};

TEST_F(JsonFile, IsReadUpToItsCap) {
  put(file("a.json"), "{\"a\":1}");
  EXPECT_EQ(read_json(file("a.json"))["a"], 1);
  EXPECT_EQ(read_json(file("a.json"), 7)["a"], 1);
  EXPECT_THAT(error_of([&] { read_json(file("a.json"), 6); }),
              AllOf(HasSubstr("a.json"), HasSubstr("7 bytes"), HasSubstr("6")));
  EXPECT_THAT(error_of([&] { read_json(file("b.json")); }), HasSubstr("No such file"));
  EXPECT_THAT(error_of([&] { read_json(directory()); }), HasSubstr("not a regular file"));
}

}  // namespace
}  // namespace kvc
