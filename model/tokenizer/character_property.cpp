#include "model/tokenizer/unicode.h"

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "model/tokenizer/property_ranges.h"

namespace kvc {

namespace {

constexpr char32_t kLastCodePoint = 0x10FFFF;

struct Alias {
  std::string_view name, property;
};

// The long names of general categories.
constexpr Alias kAliases[] = {
    {"letter", "l"},
    {"casedletter", "lc"},
    {"uppercaseletter", "lu"},
    {"lowercaseletter", "ll"},
    {"titlecaseletter", "lt"},
    {"modifierletter", "lm"},
    {"otherletter", "lo"},
    {"mark", "m"},
    {"nonspacingmark", "mn"},
    {"spacingmark", "mc"},
    {"enclosingmark", "me"},
    {"number", "n"},
    {"decimalnumber", "nd"},
    {"digit", "nd"},
    {"letternumber", "nl"},
    {"othernumber", "no"},
    {"punctuation", "p"},
    {"connectorpunctuation", "pc"},
    {"dashpunctuation", "pd"},
    {"openpunctuation", "ps"},
    {"closepunctuation", "pe"},
    {"initialpunctuation", "pi"},
    {"finalpunctuation", "pf"},
    {"otherpunctuation", "po"},
    {"symbol", "s"},
    {"mathsymbol", "sm"},
    {"currencysymbol", "sc"},
    {"modifiersymbol", "sk"},
    {"othersymbol", "so"},
    {"separator", "z"},
    {"spaceseparator", "zs"},
    {"lineseparator", "zl"},
    {"paragraphseparator", "zp"},
    {"control", "cc"},
    {"format", "cf"},
    {"privateuse", "co"},
    {"alpha", "alphabetic"},
};

std::string compared_name(std::string_view name) {
  std::string compared;
  for (const char c : name) {
    if (c == ' ' || c == '_' || c == '-') continue;
    compared += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  for (const Alias& alias : kAliases) {
    if (alias.name == compared) return std::string(alias.property);
  }
  return compared;
}

std::vector<CodePointRange> sorted_union(std::vector<CodePointRange> ranges) {
  std::sort(ranges.begin(), ranges.end(),
            [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<CodePointRange> result;
  for (const CodePointRange& range : ranges) {
    if (!result.empty() && range.first <= result.back().last + 1) {
      result.back().last = std::max(result.back().last, range.last);
    } else {
      result.push_back(range);
    }
  }
  return result;
}

void append_ranges(std::span<const CodePointRun> runs, std::vector<CodePointRange>& ranges) {
  for (const CodePointRun& run : runs) {
    if (run.step == 1) {
      ranges.push_back({run.first, run.last});
    } else {
      for (char32_t code = run.first; code <= run.last; code += run.step) {
        ranges.push_back({code, code});
      }
    }
  }
}

// L is the union of Lu, Ll, Lt, Lm and Lo; LC of the first three.
bool is_part_of(std::string_view category, std::string_view group) {
  if (group == "lc") return category == "lu" || category == "ll" || category == "lt";
  return group.size() == 1 && category.front() == group.front();
}

// Superscript digits and fractions, which \w matches but [\w] does not.
std::vector<CodePointRange> without_latin1_numbers(const std::vector<CodePointRange>& ranges) {
  constexpr CodePointRange kNumbers[] = {{0xB2, 0xB3}, {0xB9, 0xB9}, {0xBC, 0xBE}};
  std::vector<CodePointRange> others = complement(ranges);
  others.insert(others.end(), std::begin(kNumbers), std::end(kNumbers));
  return complement(sorted_union(std::move(others)));
}

}  // namespace

std::optional<std::vector<CodePointRange>> property_ranges(std::string_view name, bool in_class) {
  const std::string wanted = compared_name(name);
  if (wanted == "any") return std::vector<CodePointRange>{{0, kLastCodePoint}};
  std::vector<CodePointRange> ranges;
  int row = 0;
  for (const NamedProperty& property : kProperties) {
    const bool is_category = row++ < kNumCategories;
    if (property.name == wanted || (is_category && is_part_of(property.name, wanted))) {
      append_ranges(property.runs, ranges);
    }
  }
  // C also has surrogates and unassigned code points, for which there is no table.
  if (ranges.empty() || wanted == "c") return std::nullopt;
  ranges = sorted_union(std::move(ranges));
  return in_class && wanted == "word" ? without_latin1_numbers(ranges) : ranges;
}

std::vector<CodePointRange> complement(const std::vector<CodePointRange>& ranges) {
  std::vector<CodePointRange> result;
  char32_t next = 0;
  for (const CodePointRange& range : ranges) {
    if (range.first > next) result.push_back({next, range.first - 1});
    next = range.last + 1;
  }
  if (next <= kLastCodePoint) result.push_back({next, kLastCodePoint});
  return result;
}

}  // namespace kvc
