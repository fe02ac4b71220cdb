#include "model/tokenizer/parts.h"

#include <optional>
#include <utility>

namespace kvc {

namespace {

using Ids = std::vector<std::int64_t>;
// The ids of a special token; nullopt stands for the text.
using TemplatePiece = std::optional<Ids>;

TemplatePiece read_piece(const TokenizerJson& piece, const TokenizerJson& special_tokens,
                         const std::string& subject) {
  if (piece.is_object() && piece.contains("Sequence")) {
    const auto id = component_value<std::string>(piece["Sequence"], "id", subject);
    KVC_CHECK(id == "A", "{}: the template \"single\" uses sequence \"{}\", expected \"A\"",
              subject, id);
    return std::nullopt;
  }
  KVC_CHECK(piece.is_object() && piece.contains("SpecialToken"),
            "{}: a piece of \"single\" is neither Sequence nor SpecialToken", subject);
  const auto name = component_value<std::string>(piece["SpecialToken"], "id", subject);
  const auto token = component_value<TokenizerJson>(special_tokens, name, subject);
  Ids ids;
  for (const TokenizerJson& id :
       component_value<std::vector<TokenizerJson>>(token, "ids", subject)) {
    KVC_CHECK(id.is_number_unsigned() && std::in_range<std::int32_t>(id.get<std::uint64_t>()),
              "{}: key \"ids\" of \"{}\" holds {}, expected token ids", subject, name, id.dump());
    ids.push_back(id.get<std::int64_t>());
  }
  return ids;
}

PostProcessor make_template(const TokenizerJson& json, const std::string& subject) {
  const auto special_tokens = component_value<TokenizerJson>(json, "special_tokens", subject);
  std::vector<TemplatePiece> pieces;
  for (const TokenizerJson& piece :
       component_value<std::vector<TokenizerJson>>(json, "single", subject)) {
    pieces.push_back(read_piece(piece, special_tokens, subject));
  }
  return [pieces](Ids& ids) {
    Ids result;
    for (const TemplatePiece& piece : pieces) {
      const Ids& part = piece ? *piece : ids;
      result.insert(result.end(), part.begin(), part.end());
    }
    ids = std::move(result);
  };
}

// ["<s>", 1]
std::int64_t read_token_id(const TokenizerJson& json, const char* key, const std::string& subject) {
  const auto pair = component_value<TokenizerJson>(json, key, subject);
  KVC_CHECK(
      pair.is_array() && pair.size() == 2 && pair[0].is_string() && pair[1].is_number_unsigned(),
      "{}: key \"{}\" is not a token and its id", subject, key);
  return pair[1].get<std::int64_t>();
}

// One text: BertProcessing and RobertaProcessing differ in offsets only.
PostProcessor make_enclosing(const TokenizerJson& json, const std::string& subject) {
  const std::int64_t first = read_token_id(json, "cls", subject);
  const std::int64_t last = read_token_id(json, "sep", subject);
  return [first, last](Ids& ids) {
    ids.insert(ids.begin(), first);
    ids.push_back(last);
  };
}

// Moves offsets only, which nothing here uses.
PostProcessor make_byte_level_processor(const TokenizerJson&, const std::string&) {
  return [](Ids&) {};
}

// A second template would put its tokens around the first one's, not around the text.
PostProcessor make_processors(const TokenizerJson& json, const std::string& subject) {
  int num_templates = 0;
  for (const TokenizerJson& member : component_value<TokenizerJson>(json, "processors", subject)) {
    if (!member.is_object()) continue;
    const auto type = component_value<std::string>(member, "type", subject);
    KVC_CHECK(type == "ByteLevel" || ++num_templates == 1,
              "{}: more than one member that adds tokens is not supported", subject);
  }
  return [members = make_members<PostProcessor>(json, "processors", make_post_processor, subject)](
             Ids& ids) {
    for (const PostProcessor& member : members) member(ids);
  };
}

constexpr ComponentRow<PostProcessor> kPostProcessors[] = {
    {"BertProcessing", make_enclosing},    {"ByteLevel", make_byte_level_processor},
    {"RobertaProcessing", make_enclosing}, {"Sequence", make_processors},
    {"TemplateProcessing", make_template},
};

}  // namespace

PostProcessor make_post_processor(const TokenizerJson& json, const std::string& subject) {
  return make_component<PostProcessor>(json, kPostProcessors, subject);
}

}  // namespace kvc
