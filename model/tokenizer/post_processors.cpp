#include "model/tokenizer/post_processors.h"

#include <optional>

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
  return component_value<Ids>(token, "ids", subject);
}

PostProcessor make_template(const TokenizerJson& json, const std::string& subject) {
  const auto special_tokens = component_value<TokenizerJson>(json, "special_tokens", subject);
  std::vector<TemplatePiece> pieces;
  for (const TokenizerJson& piece :
       component_value<std::vector<TokenizerJson>>(json, "single", subject)) {
    pieces.push_back(read_piece(piece, special_tokens, subject));
  }
  return [pieces](const Ids& text) {
    Ids result;
    for (const TemplatePiece& piece : pieces) {
      const Ids& ids = piece ? *piece : text;
      result.insert(result.end(), ids.begin(), ids.end());
    }
    return result;
  };
}

// Moves offsets only, which nothing here uses.
PostProcessor make_byte_level(const TokenizerJson&, const std::string&) { return {}; }

constexpr ComponentRow<PostProcessor> kPostProcessors[] = {
    {"ByteLevel", make_byte_level},
    {"TemplateProcessing", make_template},
};

}  // namespace

PostProcessor make_post_processor(const TokenizerJson& json, const std::string& subject) {
  return make_component<PostProcessor>(json, kPostProcessors, subject);
}

}  // namespace kvc
