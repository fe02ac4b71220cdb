#include "core/safetensors.h"

#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::StartsWith;

std::vector<TensorInfo> parse(const std::string& bytes,
                              std::map<std::string, std::string>* metadata = nullptr) {
  return SafetensorsFile::parse_header(std::as_bytes(std::span(bytes)), bytes.size(),
                                       "w.safetensors", metadata);
}

std::string header_error(const std::string& header, std::size_t data_bytes = 0) {
  return error_of([&] { parse(safetensors_bytes(header, data_bytes)); });
}

// An entry "t" of dtype, shape and offsets.
std::string one(const std::string& dtype, const std::string& shape, const std::string& offsets) {
  return fmt::format(R"({{"t":{{"dtype":{},"shape":{},"data_offsets":{}}}}})", dtype, shape,
                     offsets);
}

std::string length_word(std::uint64_t length) {
  std::string bytes;
  for (int i = 0; i < 8; ++i) {
    bytes += static_cast<char>(length >> (8 * i) & 0xff);
  }
  return bytes;
}

TEST(SafetensorsHeader, ChecksTheLengthWord) {
  EXPECT_THAT(error_of([] { parse(""); }), HasSubstr("w.safetensors: 0 bytes are too few"));
  EXPECT_THAT(error_of([] { parse("1234567"); }), HasSubstr("at least 8"));
  EXPECT_THAT(error_of([] { parse(length_word(100'000'001)); }),
              AllOf(HasSubstr("100000001"), HasSubstr("at most 100000000")));
  // The cap itself is allowed; then the file is too short for it.
  EXPECT_THAT(error_of([] { parse(length_word(100'000'000) + "{}"); }),
              AllOf(HasSubstr("truncated"), HasSubstr("the file holds 2")));
  EXPECT_THAT(error_of([] { parse(length_word(~std::uint64_t{0}) + "{}"); }), HasSubstr("at most"));
  EXPECT_THAT(error_of([] { parse(length_word(3) + "{}"); }), HasSubstr("truncated"));
}

TEST(SafetensorsHeader, IsStrictJson) {
  for (std::string text : {"", "[]", "1", "null", "{", "{} x", "\xEF\xBB\xBF{}", "{/*c*/}",
                           R"({"a":NaN})", "{\"\xff\":{}}", R"({"\ud800":{}})"}) {
    EXPECT_THAT(header_error(text), StartsWith("w.safetensors: header: ")) << text;
  }
  EXPECT_NE(header_error("{},"), "");
  EXPECT_NE(header_error(std::string("{}\0\0", 4)), "");
  EXPECT_THAT(header_error(R"({"t":)" + std::string(200, '[') + std::string(200, ']') + "}"),
              HasSubstr("nested deeper"));
}

TEST(SafetensorsHeader, ChecksEveryField) {
  EXPECT_EQ(header_error(one(R"("F32")", "[2]", "[0,8]"), 8), "");
  EXPECT_THAT(header_error(one(R"("f32")", "[2]", "[0,8]"), 8),
              AllOf(HasSubstr("tensor 't'"), HasSubstr("unknown dtype \"f32\"")));
  EXPECT_THAT(header_error(one("3", "[2]", "[0,8]"), 8), HasSubstr("dtype is missing or no text"));
  EXPECT_THAT(header_error(R"({"t":{"shape":[2],"data_offsets":[0,8]}})", 8), HasSubstr("dtype"));
  EXPECT_THAT(header_error(R"({"t":{"dtype":"F32","data_offsets":[0,8]}})", 8),
              HasSubstr("shape is missing"));
  EXPECT_THAT(header_error(R"({"t":{"dtype":"F32","shape":[2]}})", 8),
              HasSubstr("data_offsets is missing"));
  EXPECT_THAT(
      header_error(R"({"t":{"dtype":"F32","dtype":"F32","shape":[2],"data_offsets":[0,8]}})", 8),
      HasSubstr("\"dtype\" appears twice"));
  EXPECT_THAT(header_error(R"({"t":3})"), HasSubstr("tensor 't': must be an object"));
  EXPECT_THAT(header_error(one(R"("F32")", "2", "[0,8]"), 8), HasSubstr("shape must be a list"));
  for (const char* number : {"-1", "2.0", "2e0", "-0", "18446744073709551616", "\"2\"", "null"}) {
    EXPECT_THAT(header_error(one(R"("F32")", fmt::format("[{}]", number), "[0,8]"), 8),
                HasSubstr("shape must hold whole numbers"))
        << number;
    EXPECT_THAT(header_error(one(R"("F32")", "[2]", fmt::format("[0,{}]", number)), 8),
                HasSubstr("data_offsets must hold whole numbers"))
        << number;
  }
  for (const char* offsets : {"[]", "[0]", "[0,8,8]"}) {
    EXPECT_THAT(header_error(one(R"("F32")", "[2]", offsets), 8), HasSubstr("must be two numbers"));
  }
}

TEST(SafetensorsHeader, ChecksTheLayout) {
  const auto two = [](const char* a, const char* b) {
    return fmt::format(R"({{"a":{{"dtype":"U8","shape":[4],"data_offsets":{}}},)"
                       R"("b":{{"dtype":"U8","shape":[4],"data_offsets":{}}}}})",
                       a, b);
  };
  EXPECT_EQ(header_error(two("[4,8]", "[0,4]"), 8), "");
  EXPECT_THAT(header_error(two("[0,4]", "[5,9]"), 9),
              AllOf(HasSubstr("tensor 'b'"), HasSubstr("begin at 5, expected 4")));
  EXPECT_THAT(header_error(two("[0,4]", "[3,7]"), 8), HasSubstr("begin at 3, expected 4"));
  EXPECT_THAT(header_error(two("[1,5]", "[5,9]"), 9), HasSubstr("begin at 1, expected 0"));
  EXPECT_THAT(header_error(two("[0,4]", "[4,3]"), 8), HasSubstr("before they begin"));
  EXPECT_THAT(header_error(two("[0,4]", "[4,8]"), 7),
              AllOf(HasSubstr("truncated"), HasSubstr("8 bytes of tensors, the file holds 7")));
  EXPECT_THAT(header_error(two("[0,4]", "[4,8]"), 9), HasSubstr("1 bytes follow the last tensor"));
  EXPECT_THAT(header_error("{}", 1), HasSubstr("1 bytes follow"));
  EXPECT_THAT(header_error(one(R"("F32")", "[2,3]", "[0,8]"), 8),
              HasSubstr("F32 [2, 3] needs 24 bytes, data_offsets give 8"));
}

TEST(SafetensorsHeader, ChecksSizesWithoutWrapping) {
  EXPECT_EQ(header_error(one(R"("F32")", "[0,1099511627776,1099511627776]", "[0,0]")), "");
  EXPECT_THAT(header_error(one(R"("F32")", "[1099511627776,1099511627776,0]", "[0,0]")),
              HasSubstr("does not fit in 64 bits"));
  // 2^61 float32 are 2^66 bits, which wraps to 0.
  EXPECT_THAT(header_error(one(R"("F32")", "[2305843009213693952]", "[0,0]")),
              HasSubstr("does not fit in 64 bits"));
  EXPECT_THAT(header_error(one(R"("F32")", "[9223372036854775808]", "[0,0]")),
              HasSubstr("too large"));
  EXPECT_THAT(header_error(one(R"("F32")", "[1]", "[0,18446744073709551615]"), 4),
              HasSubstr("needs 4"));
  EXPECT_THAT(header_error(one(R"("F4")", "[3]", "[0,1]"), 1), HasSubstr("do not end on a byte"));
  EXPECT_EQ(header_error(one(R"("F4")", "[4]", "[0,2]"), 2), "");
  EXPECT_EQ(header_error(one(R"("F6_E2M3")", "[4]", "[0,3]"), 3), "");
}

TEST(SafetensorsHeader, RefusesWhatTheReferenceReaderToleratesSilently) {
  const std::string entry = R"({"dtype":"U8","shape":[0],"data_offsets":[0,0]})";
  EXPECT_THAT(header_error(R"({"a":)" + entry + R"(,"a":)" + entry + "}"),
              HasSubstr("\"a\" appears twice"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":"1","a":"2"}})"), HasSubstr("appears twice"));
  EXPECT_THAT(header_error(R"({"":)" + entry + "}"), HasSubstr("without a name"));
  EXPECT_THAT(header_error(R"({"a\u0000b":)" + entry + "}"), HasSubstr("control characters"));
  EXPECT_THAT(header_error(R"({"a\nb":)" + entry + "}"), HasSubstr("\"a\\nb\""));
  EXPECT_THAT(header_error(fmt::format(R"({{"{}":{}}})", std::string(513, 'n'), entry)),
              HasSubstr("513"));
  EXPECT_EQ(header_error(fmt::format(R"({{"{}":{}}})", std::string(512, 'n'), entry)), "");
  EXPECT_THAT(header_error(one(R"("U8")", "[0,1,1,1,1,1,1,1,1]", "[0,0]")),
              HasSubstr("9 dimensions, at most 8"));
}

TEST(SafetensorsHeader, ChecksTheMetadata) {
  EXPECT_THAT(header_error(R"({"__metadata__":[]})"), HasSubstr("__metadata__ must be an object"));
  EXPECT_THAT(header_error(R"({"__metadata__":{"a":1}})"), HasSubstr("\"a\" must be text"));
  EXPECT_THAT(header_error(R"({"__metadata__":{},"__metadata__":{}})"), HasSubstr("appears twice"));
  std::map<std::string, std::string> metadata;
  parse(safetensors_bytes(R"({"__metadata__":{"format":"pt","x":""}})", 0), &metadata);
  EXPECT_THAT(metadata, ::testing::ElementsAre(std::pair("format", "pt"), std::pair("x", "")));
}

TEST(SafetensorsHeader, AcceptsWhatTheFormatAllows) {
  EXPECT_TRUE(parse(safetensors_bytes("{}", 0)).empty());
  EXPECT_TRUE(parse(safetensors_bytes(R"({"__metadata__":null})", 0)).empty());
  EXPECT_TRUE(parse(safetensors_bytes(" \n\t{ } \r\n", 0)).empty());
  const auto scalar = parse(safetensors_bytes(one(R"("F64")", "[]", "[0,8]"), 8));
  EXPECT_TRUE(scalar.at(0).shape.empty());
  EXPECT_EQ(header_error(R"({"t":{"x":[{}],"dtype":"U8","shape":[1],"data_offsets":[0,1]}})", 1),
            "");
  // Empty tensors between others, entries in any order, an odd header length.
  const auto tensors =
      parse(safetensors_bytes(R"({"c":{"dtype":"U8","shape":[1],"data_offsets":[2,3]},)"
                              R"("b":{"dtype":"F32","shape":[0,7],"data_offsets":[2,2]},)"
                              R"("a":{"dtype":"U8","shape":[2],"data_offsets":[0,2]}})",
                              3));
  ASSERT_EQ(tensors.size(), 3u);
  EXPECT_EQ(tensors[0].name + tensors[1].name + tensors[2].name, "abc");
}

}  // namespace
}  // namespace kvc
