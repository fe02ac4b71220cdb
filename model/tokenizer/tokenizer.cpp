#include "model/tokenizer/tokenizer.h"

#include <algorithm>
#include <fstream>
#include <iterator>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/hash.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/bpe_model.h"
#include "model/tokenizer/component.h"
#include "model/tokenizer/decoders.h"
#include "model/tokenizer/normalizers.h"
#include "model/tokenizer/post_processors.h"
#include "model/tokenizer/pre_tokenizers.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::uintmax_t kMaxFileBytes = 256u << 20;

std::string read_tokenizer_file(const std::filesystem::path& path) {
  std::error_code error;
  const std::uintmax_t size = std::filesystem::file_size(path, error);
  KVC_CHECK(!error, "{}: cannot be read ({}); the model directory needs its tokenizer.json",
            path.string(), error.message());
  KVC_CHECK(size <= kMaxFileBytes, "{}: {} bytes, expected at most {}", path.string(), size,
            kMaxFileBytes);
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  KVC_CHECK(file && text.size() == size, "{}: cannot be read", path.string());
  return text;
}

TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& subject) {
  // Truncation and padding are settings of the moment the file was saved; text is tokenized
  // without.
  static const std::set<std::string> kKnownKeys = {"version",        "truncation", "padding",
                                                   "added_tokens",   "normalizer", "pre_tokenizer",
                                                   "post_processor", "decoder",    "model"};
  TokenizerJson json = TokenizerJson::parse(text, nullptr, false);
  KVC_CHECK(!json.is_discarded(), "{}: not valid JSON", subject);
  KVC_CHECK(json.is_object(), "{}: expected an object, found {}", subject, json.type_name());
  for (const auto& [key, value] : json.items()) {
    KVC_CHECK(kKnownKeys.count(key) != 0, "{}: key \"{}\" is not known", subject, key);
  }
  const auto version = component_value<std::string>(json, "version", "1.0", subject);
  KVC_CHECK(version == "1.0", "{}: version \"{}\", expected \"1.0\"", subject, version);
  return json;
}

}  // namespace

struct Tokenizer::Impl {
  std::string hash;
  TextNormalizer normalizer;
  PreTokenizer pre_tokenizer;
  BpeModel model;
  AddedTokens added;
  PostProcessor post_processor;
  TokenDecoder decoder;

  Impl(const std::string& text, const std::string& subject);
  // One stretch of text without raw added tokens.
  void encode_part(std::string_view text, BpeCache& cache, std::vector<std::int64_t>& ids) const;
  // nullptr: no token, or one that is skipped.
  const std::string* decoded_token(std::int64_t id, bool skip_special_tokens) const;
  std::int64_t id_bound() const { return std::max(model.vocabulary.id_bound(), added.id_bound()); }
};

Tokenizer::Impl::Impl(const std::string& text, const std::string& subject)
    : hash(sha256_hex(text)) {
  const TokenizerJson json = parse_tokenizer_json(text, subject);
  const auto part = [&json](const char* key) {
    const auto found = json.find(key);
    return found == json.end() ? TokenizerJson() : *found;
  };
  normalizer = make_normalizer(part("normalizer"), subject + ": normalizer");
  pre_tokenizer = make_pre_tokenizer(part("pre_tokenizer"), subject + ": pre_tokenizer");
  model = read_bpe_model(part("model"), subject + ": model");
  added =
      AddedTokens(part("added_tokens"), model.vocabulary, normalizer, subject + ": added_tokens");
  post_processor = make_post_processor(part("post_processor"), subject + ": post_processor");
  decoder = make_decoder(part("decoder"), subject + ": decoder");
}

void Tokenizer::Impl::encode_part(std::string_view text, BpeCache& cache,
                                  std::vector<std::int64_t>& ids) const {
  std::string normalized(text);
  if (normalizer) normalized = normalizer(std::move(normalized));
  for (const TextPart& part : added.normalized().split(normalized)) {
    if (part.id) {
      ids.push_back(*part.id);
      continue;
    }
    std::vector<std::string> pieces{std::string(part.text)};
    if (pre_tokenizer) pieces = pre_tokenizer(std::move(pieces));
    for (const std::string& piece : pieces) cache.encode(piece, ids);
  }
}

const std::string* Tokenizer::Impl::decoded_token(std::int64_t id, bool skip_special_tokens) const {
  const AddedToken* added_token = added.find(id);
  const std::string* token =
      added_token != nullptr ? &added_token->normalized_content : model.vocabulary.token(id);
  if (token == nullptr || (skip_special_tokens && added.is_special(*token))) return nullptr;
  return token;
}

Tokenizer Tokenizer::load(const std::filesystem::path& directory) {
  const std::filesystem::path path = directory / "tokenizer.json";
  return Tokenizer(std::make_unique<Impl>(read_tokenizer_file(path), path.string()));
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;
Tokenizer::Tokenizer(Tokenizer&&) noexcept = default;
Tokenizer& Tokenizer::operator=(Tokenizer&&) noexcept = default;

std::vector<std::int64_t> Tokenizer::encode(std::string_view text, bool add_special_tokens) const {
  const auto invalid = first_invalid_utf8(text);
  KVC_CHECK(!invalid, "text to tokenize: byte {} is not UTF-8; convert the text to UTF-8",
            invalid.value_or(0));
  std::vector<std::int64_t> ids;
  BpeCache cache(impl_->model);
  for (const TextPart& part : impl_->added.raw().split(text)) {
    if (part.id) {
      ids.push_back(*part.id);
    } else {
      impl_->encode_part(part.text, cache, ids);
    }
  }
  return add_special_tokens ? with_special_tokens(std::move(ids)) : ids;
}

std::vector<std::int64_t> Tokenizer::with_special_tokens(std::vector<std::int64_t> ids) const {
  return impl_->post_processor ? impl_->post_processor(std::move(ids)) : ids;
}

std::string Tokenizer::decode(const std::vector<std::int64_t>& ids,
                              bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const std::int64_t id : ids) {
    KVC_CHECK(id >= 0 && id < vocab_size(), "token id {} is outside the tokenizer's 0..{}", id,
              vocab_size() - 1);
    const std::string* token = impl_->decoded_token(id, skip_special_tokens);
    if (token != nullptr) tokens.push_back(*token);
  }
  if (!impl_->decoder) return fmt::format("{}", fmt::join(tokens, " "));
  return fmt::format("{}", fmt::join(impl_->decoder(std::move(tokens)), ""));
}

std::int64_t Tokenizer::vocab_size() const { return impl_->id_bound(); }

const std::string& Tokenizer::hash() const { return impl_->hash; }

}  // namespace kvc
