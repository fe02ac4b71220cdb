#include "convert/coded/coded_settings.h"

#include "core/enum_names.h"

namespace kvc {
namespace {

constexpr EnumName<CodedScope> kScopes[] = {
    {CodedScope::kHead, "head"}, {CodedScope::kLayer, "layer"}, {CodedScope::kGroup, "group"}};
constexpr EnumName<CodeWidths> kWidths[] = {
    {CodeWidths::kAll, "0-8"}, {CodeWidths::kPowers, "0/2/4/8"}, {CodeWidths::kNibbles, "0/4/8"}};
constexpr EnumName<Preference> kPreferences[] = {{Preference::kBalance, "balance"},
                                                 {Preference::kSpeed, "speed"},
                                                 {Preference::kCapacity, "capacity"}};
constexpr EnumName<GainChoice> kGains[] = {
    {GainChoice::kAuto, "auto"}, {GainChoice::kOn, "on"}, {GainChoice::kOff, "off"}};

}  // namespace

std::string to_string(CodedScope value) { return name_of(kScopes, value); }
std::string to_string(CodeWidths value) { return name_of(kWidths, value); }
std::string to_string(Preference value) { return name_of(kPreferences, value); }
std::string to_string(GainChoice value) { return name_of(kGains, value); }

CodedScope parse_coded_scope(const std::string& name) { return value_of(kScopes, name, "scope"); }
CodeWidths parse_code_widths(const std::string& name) {
  return value_of(kWidths, name, "set of widths");
}
Preference parse_preference(const std::string& name) {
  return value_of(kPreferences, name, "preference");
}
GainChoice parse_gain_choice(const std::string& name) {
  return value_of(kGains, name, "choice of gains");
}

const std::vector<int>& widths_of(CodeWidths widths) {
  static const std::vector<int> all = {0, 1, 2, 3, 4, 5, 6, 7, 8};
  static const std::vector<int> powers = {0, 2, 4, 8};
  static const std::vector<int> nibbles = {0, 4, 8};
  switch (widths) {
    case CodeWidths::kAll:
      break;
    case CodeWidths::kPowers:
      return powers;
    case CodeWidths::kNibbles:
      return nibbles;
  }
  return all;
}

Json to_json(const CodedSettings& settings) {
  return {{"scope", settings.scope},
          {"widths", to_string(settings.widths)},
          {"prefer", to_string(settings.prefer)},
          {"gain", to_string(settings.gain)}};
}

}  // namespace kvc
