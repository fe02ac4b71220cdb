#include "model/tokenizer/unicode.h"

#include <algorithm>
#include <vector>

#include <utf8proc.h>

#include "core/error.h"
#include "model/tokenizer/utf8.h"

namespace kvc {

namespace {

using CodePoints = std::vector<utf8proc_int32_t>;

utf8proc_option_t decomposition_of(UnicodeForm form) {
  const bool compatible = form == UnicodeForm::kNfkc || form == UnicodeForm::kNfkd;
  return static_cast<utf8proc_option_t>(UTF8PROC_DECOMPOSE | UTF8PROC_STABLE |
                                        (compatible ? UTF8PROC_COMPAT : 0));
}

void append_decomposition(char32_t code_point, utf8proc_option_t options, CodePoints& result) {
  constexpr std::size_t kMost = 18;  // U+FDFA decomposes into 18, which is the most
  utf8proc_int32_t pieces[kMost];
  int last_boundary_class = 0;
  const auto count = utf8proc_decompose_char(static_cast<utf8proc_int32_t>(code_point), pieces,
                                             kMost, options, &last_boundary_class);
  KVC_CHECK(count >= 0 && static_cast<std::size_t>(count) <= kMost,
            "utf8proc: U+{:04X} cannot be decomposed", static_cast<unsigned>(code_point));
  result.insert(result.end(), pieces, pieces + count);
}

int combining_class(utf8proc_int32_t code_point) {
  return utf8proc_get_property(code_point)->combining_class;
}

// Sorts each run of combining characters by class; unlike utf8proc's own way, never in quadratic
// time.
void sort_marks(CodePoints& code_points) {
  for (auto begin = code_points.begin(); begin != code_points.end();) {
    if (combining_class(*begin) == 0) {
      ++begin;
      continue;
    }
    const auto end = std::find_if(begin, code_points.end(),
                                  [](auto code_point) { return combining_class(code_point) == 0; });
    std::stable_sort(begin, end,
                     [](auto a, auto b) { return combining_class(a) < combining_class(b); });
    begin = end;
  }
}

// Code points that normalization may change are normalized by themselves. Those that are none for
// the tokenizers library, whose tables are of Unicode 9, stay as they are, whatever utf8proc's
// tables say, and interact with nothing.
void append_normalized(CodePoints& code_points, UnicodeForm form, std::string& result) {
  sort_marks(code_points);
  if (form == UnicodeForm::kNfc || form == UnicodeForm::kNfkc) {
    const auto count = utf8proc_normalize_utf32(
        code_points.data(), static_cast<utf8proc_ssize_t>(code_points.size()),
        static_cast<utf8proc_option_t>(UTF8PROC_COMPOSE | UTF8PROC_STABLE));
    KVC_CHECK(count >= 0, "utf8proc: {}", utf8proc_errmsg(count));
    code_points.resize(static_cast<std::size_t>(count));
  }
  for (const auto code_point : code_points) {
    append_utf8(result, static_cast<char32_t>(code_point));
  }
  code_points.clear();
}

}  // namespace

std::string to_unicode_form(std::string_view text, UnicodeForm form) {
  const utf8proc_option_t decomposition = decomposition_of(form);
  std::string result;
  result.reserve(text.size());
  CodePoints pending;
  for (std::size_t position = 0; position < text.size();) {
    const CodePoint code = code_point_at(text, position);
    const std::size_t next = position + code.length;
    const bool ascii = code.value < 0x80;
    // An ASCII character takes part only through what follows it.
    if (ascii && !pending.empty()) append_normalized(pending, form, result);
    const bool alone =
        ascii && (next == text.size() || static_cast<unsigned char>(text[next]) < 0x80);
    if (!alone && is_normalizing(code.value)) {
      append_decomposition(code.value, decomposition, pending);
    } else {
      if (!pending.empty()) append_normalized(pending, form, result);
      append_utf8(result, code.value);
    }
    position = next;
  }
  if (!pending.empty()) append_normalized(pending, form, result);
  return result;
}

}  // namespace kvc
