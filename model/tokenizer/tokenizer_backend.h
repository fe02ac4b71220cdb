// What every kind of tokenizer does behind Tokenizer, which has checked texts and ids.
#pragma once

#include <cstdint>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

namespace kvc {

class TokenizerBackend {
 public:
  TokenizerBackend() = default;
  TokenizerBackend(const TokenizerBackend&) = delete;
  TokenizerBackend& operator=(const TokenizerBackend&) = delete;
  virtual ~TokenizerBackend() = default;

  // `text` is valid UTF-8; without what with_special_tokens adds.
  virtual std::vector<std::int64_t> encode(std::string_view text) const = 0;
  virtual std::vector<std::int64_t> with_special_tokens(std::vector<std::int64_t> ids) const = 0;
  // Every id is in 0 .. id_bound() - 1.
  virtual std::string decode(const std::vector<std::int64_t>& ids,
                             bool skip_special_tokens) const = 0;
  virtual std::int64_t id_bound() const = 0;  // largest id + 1, added tokens included
  virtual const std::string& hash() const = 0;
};

// tokenizer.json, natively: byte-level BPE and Metaspace-style BPE with byte fallback. Every
// component that is not supported is refused by its name. Its hash is the file's SHA-256.
std::unique_ptr<TokenizerBackend> read_json_tokenizer(const std::filesystem::path& file);

// tokenizer.model and the settings beside it, through the sentencepiece library, with the conventions of
// transformers' sentencepiece tokenizers (LlamaTokenizer, GemmaTokenizer): special tokens are cut out of the
// text first, the model sees the stretches between them. Its hash covers both.
std::unique_ptr<TokenizerBackend> read_sentencepiece_tokenizer(
    const std::filesystem::path& directory);

}  // namespace kvc
