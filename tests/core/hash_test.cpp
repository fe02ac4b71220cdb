#include "core/hash.h"

#include "tests/core/core_fixture.h"

namespace kvc {
namespace {

TEST(Sha256, EqualsThePublishedVectors) {
  EXPECT_EQ(sha256_hex(""), "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855");
  EXPECT_EQ(sha256_hex("abc"), "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  EXPECT_EQ(sha256_hex(std::string(1'000'000, 'a')),
            "cdc76e5c9914fb9281a1c7e284d73e67f1809a48a497200e046d39ccc7112cd0");
}

// Lengths around the block of 64 and the 56 after which the length needs another block (hashlib).
TEST(Sha256, PadsEveryLength) {
  const std::pair<std::size_t, const char*> cases[] = {
      {55, "9f4390f8d30c2dd92ec9f095b65e2b9ae9b0a925a5258e241c9f1e910f734318"},
      {56, "b35439a4ac6f0948b6d6f9e3c6af0f5f590ce20f1bde7090ef7970686ec6738a"},
      {63, "7d3e74a05d7db15bce4ad9ec0658ea98e3f06eeecf16b4c6fff2da457ddc2f34"},
      {64, "ffe054fe7ae0cb6dc65c3af9b61d5209f439851db43d0ba5997337df154668eb"},
      {65, "635361c48bb9eab14198e76ea8ab7f1a41685d6ad62aa9146d301d4f17eb0ae0"},
      {119, "31eba51c313a5c08226adf18d4a359cfdfd8d2e816b13f4af952f7ea6584dcfb"},
      {120, "2f3d335432c70b580af0e8e1b3674a7c020d683aa5f73aaaedfdc55af904c21c"},
      {128, "6836cf13bac400e9105071cd6af47084dfacad4e5e302c94bfed24e013afb73e"}};
  for (const auto& [length, expected] : cases) {
    EXPECT_EQ(sha256_hex(std::string(length, 'a')), expected) << length;
  }
}

TEST(Sha256, DoesNotDependOnHowTheBytesArrive) {
  std::string text;
  for (int i = 0; i < 1000; ++i) {
    text += static_cast<char>(i * 31);
  }
  for (std::size_t step : {1, 3, 63, 64, 65, 200}) {
    Sha256 hash;
    for (std::size_t at = 0; at < text.size(); at += step) {
      hash.update(std::string_view(text).substr(at, step));
    }
    EXPECT_EQ(hash.hex(), sha256_hex(text)) << step;
  }
}

class HashFile : public FilesTest {};

TEST_F(HashFile, IsTheHashOfItsBytes) {
  const std::string text(3'000'000, 'q');
  put(file("a"), text);
  put(file("empty"), "");
  EXPECT_EQ(sha256_hex_of_file(file("a")), sha256_hex(text));
  EXPECT_EQ(sha256_hex_of_file(file("empty")), sha256_hex(""));
  EXPECT_NE(error_of([&] { sha256_hex_of_file(file("absent")); }), "");
  EXPECT_NE(error_of([&] { sha256_hex_of_file(directory()); }), "");
}

}  // namespace
}  // namespace kvc
