#include "convert/options.h"

#include "core/error.h"

namespace kvc {
namespace {

struct AsJson {
  Json operator()(const Word& word) const { return word.get(); }
  template <typename Value>
  Json operator()(const Value* value) const {
    return *value;
  }
};

struct AsText {
  std::string operator()(const Word& word) const { return word.get(); }
  template <typename Value>
  std::string operator()(const Value* value) const {
    return fmt::format("{}", *value);
  }
};

}  // namespace

void add_tokens(Options& options, const char* flag, const char* key, std::int64_t& value,
                std::int64_t least, const char* help) {
  constexpr std::int64_t kMost = std::int64_t{1} << 30;
  options.add(flag, key, value, help, fmt::format("{} to {} tokens", least, kMost),
              [least](std::int64_t tokens) { return tokens >= least && tokens <= kMost; });
}

void record(const Options& options, Json& json) {
  for (const Option& option : options.rows()) {
    if (option.key.empty()) {
      continue;
    }
    json[Json::json_pointer("/" + option.key)] = std::visit(AsJson{}, option.value);
  }
}

void check_ranges(const Options& options) {
  for (const Option& option : options.rows()) {
    KVC_CHECK_USAGE(!option.in_range || option.in_range(), "{} {}: expected {}", option.name(),
                    std::visit(AsText{}, option.value), option.expected);
  }
}

}  // namespace kvc
