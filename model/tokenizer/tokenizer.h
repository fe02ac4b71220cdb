// Text to token ids and back, as the HuggingFace libraries do it on every string. Needs no torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvc {

class TokenizerBackend;

class Tokenizer {
 public:
  // Reads <directory>/tokenizer.json, or else tokenizer.model and the settings beside it.
  static Tokenizer load(const std::filesystem::path& directory);
  // Whether the directory has the files of a tokenizer.
  static bool exists(const std::filesystem::path& directory);
  // hash() of the directory's tokenizer, without reading more than that takes.
  static std::string hash_of(const std::filesystem::path& directory);
  ~Tokenizer();
  Tokenizer(Tokenizer&&) noexcept;
  Tokenizer& operator=(Tokenizer&&) noexcept;

  // `text` is UTF-8; invalid bytes are an Error. add_special_tokens: what the post-processor adds
  // (BOS).
  std::vector<std::int64_t> encode(std::string_view text, bool add_special_tokens = true) const;
  // What the post-processor puts around the ids of a text that was encoded without.
  std::vector<std::int64_t> with_special_tokens(std::vector<std::int64_t> ids) const;
  // Ids without a token give no text: gaps of the vocabulary, and ids behind it, since the vocabularies of models are often
  // padded. Negative ids are an Error.
  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special_tokens = true) const;
  std::int64_t vocab_size() const;  // largest id + 1, added tokens included
  const std::string& hash() const;  // SHA-256 of what the ids depend on

 private:
  explicit Tokenizer(std::unique_ptr<TokenizerBackend> backend);
  std::unique_ptr<TokenizerBackend> backend_;
};

}  // namespace kvc
