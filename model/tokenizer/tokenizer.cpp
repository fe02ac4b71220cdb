#include "model/tokenizer/tokenizer.h"

#include <fmt/format.h>

#include <charconv>
#include <utility>
#include <vector>

#include "core/error.h"
#include "core/hash.h"
#include "core/json.h"
#include "core/progress.h"
#include "model/tokenizer/tokenizer_backend.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

namespace fs = std::filesystem;

constexpr const char* kJsonFile = "tokenizer.json";
constexpr const char* kSentencepieceFile = "tokenizer.model";

std::unique_ptr<TokenizerBackend> read_backend(const fs::path& directory) {
  KVC_CHECK(fs::is_directory(directory), "{}: no such directory", directory.string());
  if (fs::exists(directory / kJsonFile)) return read_json_tokenizer(directory / kJsonFile);
  KVC_CHECK(fs::exists(directory / kSentencepieceFile),
            "{}: no tokenizer; the model directory needs its {} or {}", directory.string(),
            kJsonFile, kSentencepieceFile);
  return read_sentencepiece_tokenizer(directory);
}

struct NamedToken {
  std::string text;
  std::int64_t id = 0;
  const char* file = "";
};

// Tokens that transformers adds to those of tokenizer.json. What such a file lacks, or says otherwise, is left out.
std::vector<NamedToken> tokens_beside(const fs::path& directory) {
  constexpr const char *kConfig = "tokenizer_config.json", *kAdded = "added_tokens.json";
  const auto object = [&](const char* file) {
    try {
      const Json json = fs::exists(directory / file) ? read_json(directory / file) : Json();
      return json.is_object() ? json : Json::object();
    } catch (const Error&) {
      return Json::object();
    }
  };
  std::vector<NamedToken> tokens;
  const Json config = object(kConfig), added = object(kAdded);
  if (config.contains("added_tokens_decoder") && config["added_tokens_decoder"].is_object()) {
    for (const auto& [id, token] : config["added_tokens_decoder"].items()) {
      std::int64_t number = -1;
      std::from_chars(id.data(), id.data() + id.size(), number);
      if (token.is_object() && token.contains("content") && token["content"].is_string()) {
        tokens.push_back({token["content"].get<std::string>(), number, kConfig});
      }
    }
  }
  for (const auto& [text, id] : added.items()) {
    if (id.is_number_integer()) {
      tokens.push_back({text, id.get<std::int64_t>(), kAdded});
    }
  }
  return tokens;
}

void note_tokens_beside(const fs::path& directory, const TokenizerBackend& backend) {
  for (const auto& [text, id, file] : tokens_beside(directory)) {
    if (!text.empty() && backend.encode(text) != std::vector<std::int64_t>{id}) {
      log_info_once(fmt::format(
          "{}: has the token {} ({}), which {} does not have: its text is read in pieces, where "
          "transformers reads one token; save the tokenizer again with its save_pretrained()",
          (directory / file).string(), one_line(text), id, kJsonFile));
      return;
    }
  }
}

}  // namespace

Tokenizer Tokenizer::load(const fs::path& directory) {
  std::unique_ptr<TokenizerBackend> backend = read_backend(directory);
  if (fs::exists(directory / kJsonFile)) {
    note_tokens_beside(directory, *backend);
  }
  return Tokenizer(std::move(backend));
}

bool Tokenizer::exists(const fs::path& directory) {
  return fs::exists(directory / kJsonFile) || fs::exists(directory / kSentencepieceFile);
}

std::string Tokenizer::hash_of(const fs::path& directory) {
  const fs::path json = directory / kJsonFile;
  return fs::exists(json) ? sha256_hex_of_file(json) : read_backend(directory)->hash();
}

Tokenizer::Tokenizer(std::unique_ptr<TokenizerBackend> backend) : backend_(std::move(backend)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const auto invalid = first_invalid_utf8(text);
  KVC_CHECK(!invalid, "text to tokenize: byte {} is not UTF-8; convert the text to UTF-8",
            invalid.value_or(0));
  std::vector<std::int64_t> ids = backend_->encode(text);
  return add_special_tokens ? with_special_tokens(std::move(ids)) : ids;
}

std::vector<std::int64_t> Tokenizer::with_special_tokens(std::vector<std::int64_t> ids) const {
  return backend_->with_special_tokens(std::move(ids));
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& ids,
                              bool skip_special_tokens) const {
  std::vector<std::int64_t> known;
  known.reserve(ids.size());
  for (const std::int64_t id : ids) {
    KVC_CHECK(id >= 0, "token id {} to decode: expected 0 or more", id);
    if (id < vocab_size()) {
      known.push_back(id);
    }
  }
  return backend_->decode(known, skip_special_tokens);
}

std::int64_t Tokenizer::vocab_size() const { return backend_->id_bound(); }

const std::string& Tokenizer::hash() const { return backend_->hash(); }

}  // namespace kvc
