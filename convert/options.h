// The options of a settings struct: one row per value, from which the command line, the record in artifacts and the
// checks of ranges follow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <variant>
#include <vector>

#include "core/enum_names.h"
#include "core/json.h"

namespace kvc {

// A value that is one of some words.
struct Word {
  std::function<void(const std::string& word)> set;  // Error listing the known ones
  std::function<std::string()> get;
};

struct Option {
  std::string flag;  // "--rank"; of a switch with its opposite "--refit,!--no-refit"
  std::string key;   // in the record: "rank", "fusion/form"; empty: not there
  std::variant<bool*, int*, std::int64_t*, double*, std::string*, Word> value;
  std::string help;
  std::string expected{};            // what a value in range is
  std::function<bool()> in_range{};  // none: every value is

  std::string name() const { return flag.substr(0, flag.find(',')); }  // "--refit"
};

class Options {
 public:
  const std::vector<Option>& rows() const { return rows_; }
  std::string heading;  // of --help; empty: among those of all methods

  template <typename Value>
  void add(const char* flag, const char* key, Value& value, const char* help) {
    rows_.push_back({flag, key, &value, help});
  }
  // A value that `in_range` must hold for.
  template <typename Value, typename InRange>
  void add(const char* flag, const char* key, Value& value, const char* help,
           const std::string& expected, const InRange& in_range) {
    rows_.push_back(
        {flag, key, &value, help, expected, [&value, in_range] { return in_range(value); }});
  }
  // An enumerator by a table of its words; an unknown one is no `what`.
  template <typename Enum, std::size_t Size>
  void add(const char* flag, const char* key, Enum& value, const EnumName<Enum> (&names)[Size],
           const char* what, const char* help) {
    const auto set = [&value, &names, what](const std::string& word) {
      value = value_of(names, word, what);
    };
    add_word(flag, key, {set, [&value, &names] { return name_of(names, value); }}, help);
  }
  // An enumerator with a parser and to_string() of its own.
  template <typename Enum>
  void add(const char* flag, const char* key, Enum& value, Enum (*parse)(const std::string&),
           const char* help) {
    const auto set = [&value, parse](const std::string& word) { value = parse(word); };
    add_word(flag, key, {set, [&value] { return to_string(value); }}, help);
  }
  void add_word(const char* flag, const char* key, Word word, const char* help) {
    rows_.push_back({flag, key, std::move(word), help});
  }

 private:
  std::vector<Option> rows_;
};

inline bool is_share(double value) { return value > 0 && value <= 1; }  // NaN is none

// Numbers of tokens from `least` on; sums and bytes of as many as are allowed fit in 64 bits.
void add_tokens(Options& options, const char* flag, const char* key, std::int64_t& value,
                std::int64_t least, const char* help);

// Adds the values under their keys.
void record(const Options& options, Json& json);
// UsageError naming the flag of a value out of range.
void check_ranges(const Options& options);

}  // namespace kvc
