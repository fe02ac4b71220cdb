#include "model/tokenizer/tokenizer_backend.h"

#include <algorithm>
#include <set>
#include <utility>

#include <fmt/ranges.h>

#include "core/error.h"
#include "core/hash.h"
#include "core/output.h"
#include "model/tokenizer/added_tokens.h"
#include "model/tokenizer/aligned_text.h"
#include "model/tokenizer/bpe.h"
#include "model/tokenizer/component.h"
#include "model/tokenizer/parts.h"
#include "model/tokenizer/pieces.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

constexpr std::size_t kMaxFileBytes = 256u << 20;

std::string read_tokenizer_file(const std::filesystem::path& path) {
  std::error_code error;
  KVC_CHECK(std::filesystem::exists(path, error) || error,
            "{}: no such file; the model directory needs its tokenizer.json", path.string());
  return read_file(path, kMaxFileBytes);
}

// How deep braces and brackets nest outside strings.
int nesting_depth(std::string_view text) {
  int depth = 0, deepest = 0;
  bool in_string = false;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (in_string) {
      if (c == '\\') ++i;
      if (c == '"') in_string = false;
    } else if (c == '"') {
      in_string = true;
    } else if (c == '{' || c == '[') {
      deepest = std::max(deepest, ++depth);
    } else if (c == '}' || c == ']') {
      --depth;
    }
  }
  return deepest;
}

TokenizerJson parse_tokenizer_json(const std::string& text, const std::string& subject) {
  // Truncation and padding are settings of the moment the file was saved; text is tokenized
  // without.
  static const std::set<std::string> kKnownKeys = {"version",        "truncation", "padding",
                                                   "added_tokens",   "normalizer", "pre_tokenizer",
                                                   "post_processor", "decoder",    "model"};
  constexpr int kMaxDepth = 64;
  const int depth = nesting_depth(text);
  KVC_CHECK(depth <= kMaxDepth, "{}: nested {} deep, expected at most {}", subject, depth,
            kMaxDepth);
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

class JsonTokenizer : public TokenizerBackend {
 public:
  JsonTokenizer(const std::string& text, const std::string& subject);
  std::vector<std::int64_t> encode(std::string_view text) const override;
  std::vector<std::int64_t> with_special_tokens(std::vector<std::int64_t> ids) const override;
  std::string decode(const std::vector<std::int64_t>& ids, bool skip_special_tokens) const override;
  std::int64_t id_bound() const override {
    return std::max(model_.vocabulary.id_bound(), added_.id_bound());
  }
  const std::string& hash() const override { return hash_; }

 private:
  struct Encoding {
    BpeCache cache;
    SearchBudget budget;
    std::vector<std::int64_t> ids;
  };
  // One stretch of text without raw added tokens. `first`: the text starts with it.
  void encode_part(std::string_view text, bool first, Encoding& encoding) const;
  // nullptr: no token, or one that is skipped.
  const std::string* decoded_token(std::int64_t id, bool skip_special_tokens) const;

  std::string hash_;
  TextNormalizer normalizer_;
  PreTokenizer pre_tokenizer_;
  BpeModel model_;
  AddedTokens added_;
  PostProcessor post_processor_;
  TokenDecoder decoder_;
};

JsonTokenizer::JsonTokenizer(const std::string& text, const std::string& subject)
    : hash_(sha256_hex(text)) {
  const TokenizerJson json = parse_tokenizer_json(text, subject);
  const TokenizerJson absent;
  const auto part = [&](const char* key) -> const TokenizerJson& {
    const auto found = json.find(key);
    return found == json.end() ? absent : *found;
  };
  normalizer_ = make_normalizer(part("normalizer"), subject + ": normalizer");
  pre_tokenizer_ = make_pre_tokenizer(part("pre_tokenizer"), subject + ": pre_tokenizer");
  model_ = read_bpe_model(part("model"), subject + ": model");
  added_ =
      AddedTokens(part("added_tokens"), model_.vocabulary, normalizer_, subject + ": added_tokens");
  post_processor_ = make_post_processor(part("post_processor"), subject + ": post_processor");
  decoder_ = make_decoder(part("decoder"), subject + ": decoder");
}

void JsonTokenizer::encode_part(std::string_view text, bool first, Encoding& encoding) const {
  AlignedText aligned{std::string(text), first ? code_point_at(text, 0).length : 0};
  if (normalizer_) normalizer_(aligned, encoding.budget);
  for (const TextPart& part : added_.normalized().split(aligned.text)) {
    if (part.id) {
      encoding.ids.push_back(*part.id);
      continue;
    }
    const auto begin = static_cast<std::size_t>(part.text.data() - aligned.text.data());
    Pieces pieces{std::string(part.text),
                  {{0, part.text.size()}},
                  aligned.first_end - std::min(aligned.first_end, begin)};
    if (pre_tokenizer_) pre_tokenizer_(pieces, encoding.budget);
    for (const Piece& piece : pieces.pieces) {
      encoding.cache.encode(pieces.view(piece), encoding.ids);
    }
  }
}

std::vector<std::int64_t> JsonTokenizer::encode(std::string_view text) const {
  Encoding encoding{BpeCache(model_), SearchBudget(text.size()), {}};
  for (const TextPart& part : added_.raw().split(text)) {
    if (part.id) {
      encoding.ids.push_back(*part.id);
    } else {
      encode_part(part.text, part.text.data() == text.data(), encoding);
    }
  }
  return std::move(encoding.ids);
}

std::vector<std::int64_t> JsonTokenizer::with_special_tokens(std::vector<std::int64_t> ids) const {
  if (post_processor_) post_processor_(ids);
  return ids;
}

const std::string* JsonTokenizer::decoded_token(std::int64_t id, bool skip_special_tokens) const {
  const AddedToken* added_token = added_.find(id);
  const std::string* token =
      added_token != nullptr ? &added_token->normalized_content : model_.vocabulary.token(id);
  if (token == nullptr || (skip_special_tokens && added_.is_special(*token))) return nullptr;
  return token;
}

std::string JsonTokenizer::decode(const std::vector<std::int64_t>& ids,
                                  bool skip_special_tokens) const {
  std::vector<std::string> tokens;
  for (const std::int64_t id : ids) {
    const std::string* token = decoded_token(id, skip_special_tokens);
    if (token != nullptr) tokens.push_back(*token);
  }
  if (!decoder_) return fmt::format("{}", fmt::join(tokens, " "));
  decoder_(tokens);
  return fmt::format("{}", fmt::join(tokens, ""));
}

}  // namespace

std::unique_ptr<TokenizerBackend> read_json_tokenizer(const std::filesystem::path& file) {
  return std::make_unique<JsonTokenizer>(read_tokenizer_file(file), file.string());
}

}  // namespace kvc
