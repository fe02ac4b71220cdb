#include "convert/coded/coded_options.h"

#include <memory>
#include <string>

#include "convert/flag_words.h"
#include "core/error.h"

namespace kvc {
namespace {

struct CodedWords {
  std::string widths, prefer, gain;
};

}  // namespace

std::function<void()> declare_coded_options(CLI::App& app, CodedSettings& settings) {
  const auto words = std::make_shared<CodedWords>();
  app.add_option("--scope", settings.scope,
                 "coded: what is coded together: head, layer, group, auto, or ranges of layers as "
                 "in head:0-5,group:6-11")
      ->capture_default_str();
  app.add_option("--widths", words->widths,
                 "coded: bits of a code: 0-8 (default), 0/2/4/8 or 0/4/8");
  app.add_option("--prefer", words->prefer,
                 "coded: preference of --scope auto: balance (default), speed or capacity");
  app.add_option(
      "--gain", words->gain,
      "coded: a byte per token and block that scales its steps: auto (default), on or off");
  return [words, &settings] {
    parse_word("--widths", words->widths, parse_code_widths, settings.widths);
    parse_word("--prefer", words->prefer, parse_preference, settings.prefer);
    parse_word("--gain", words->gain, parse_gain_choice, settings.gain);
  };
}

const std::vector<const char*>& coded_flags() {
  static const std::vector<const char*> flags = {"--scope", "--widths", "--prefer", "--gain"};
  return flags;
}

}  // namespace kvc
