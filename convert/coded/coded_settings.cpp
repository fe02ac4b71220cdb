#include "convert/coded/coded_settings.h"

#include "core/enum_names.h"
#include "core/parse_number.h"

namespace kvc {
namespace {

constexpr EnumName<CodedScope> kScopes[] = {
    {CodedScope::kHead, "head"}, {CodedScope::kLayer, "layer"}, {CodedScope::kGroup, "group"}};
constexpr EnumName<KeyTransform> kForms[] = {
    {KeyTransform::kFull, "full"},       {KeyTransform::kKeys, "keys"},
    {KeyTransform::kBlocks, "blocks"},   {KeyTransform::kPairs, "pairs"},
    {KeyTransform::kRotated, "rotated"}, {KeyTransform::kAuto, "auto"}};
constexpr EnumName<CodeWidths> kWidths[] = {
    {CodeWidths::kAll, "0-8"}, {CodeWidths::kPowers, "0/2/4/8"}, {CodeWidths::kNibbles, "0/4/8"}};
constexpr EnumName<Preference> kPreferences[] = {{Preference::kBalance, "balance"},
                                                 {Preference::kSpeed, "speed"},
                                                 {Preference::kCapacity, "capacity"}};
constexpr EnumName<GainChoice> kGains[] = {
    {GainChoice::kAuto, "auto"}, {GainChoice::kOn, "on"}, {GainChoice::kOff, "off"}};
constexpr EnumName<HeadBits> kHeadBits[] = {{HeadBits::kFree, "free"}, {HeadBits::kEqual, "equal"}};

}  // namespace

std::string to_string(CodedScope value) { return name_of(kScopes, value); }
std::string to_string(CodeWidths value) { return name_of(kWidths, value); }
CodedScope parse_coded_scope(const std::string& name) { return value_of(kScopes, name, "scope"); }

std::string to_string(const CodedForm& form) {
  const std::string name = name_of(kForms, form.keys);
  return form.keys == KeyTransform::kBlocks ? name + ":" + std::to_string(form.blocks) : name;
}

CodedForm parse_coded_form(const std::string& text) {
  if (text.empty()) {
    return {};
  }
  const std::size_t colon = text.find(':');
  CodedForm form;
  try {
    form.keys = value_of(kForms, text.substr(0, colon), "form");
  } catch (const Error& error) {
    fail_usage("--form {}: {}", text, error.what());
  }
  if (colon == std::string::npos) {
    return form;
  }
  KVC_CHECK_USAGE(form.keys == KeyTransform::kBlocks,
                  "--form {}: only blocks has a number, of bases for a head's keys, as in blocks:4",
                  text);
  KVC_CHECK_USAGE(
      parse_number(std::string_view(text).substr(colon + 1), form.blocks) && form.blocks > 0,
      "--form {}: expected a number of bases for a head's keys, at least 1, as in blocks:4", text);
  return form;
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

Options coded_options(ConvertSettings& settings) {
  CodedSettings& own = settings.own<CodedSettings>();
  Options options;
  options.add("--scope", "coded/scope", own.scope,
              "What is coded together: head, layer, group, auto, or ranges of layers as in "
              "head:0-5,group:6-11");
  options.add("--form", "coded/form", own.form,
              "Transform of the keys, from the best for its bytes to the fastest: full "
              "(default), keys, blocks[:N], pairs, rotated; auto (default with --prefer speed): "
              "the fastest that has at most 4 times the error of full");
  options.add("--products", "coded/products", own.products,
              "Multiplications for each rebuilt key that --form auto shares out among the "
              "layers (0: one form for all)",
              "0 or more", [](std::int64_t products) { return products >= 0; });
  options.add("--widths", "coded/widths", own.widths, kWidths, "set of widths",
              "Bits of a code: 0-8 (default), 0/2/4/8 or 0/4/8");
  options.add("--prefer", "coded/prefer", own.prefer, kPreferences, "preference",
              "Preference of --scope auto and --form: balance (default), speed or capacity");
  options.add("--gain", "coded/gain", own.gain, kGains, "choice of gains",
              "A byte per token and block that scales code steps: auto (default), on or off");
  options.add("--head-bits", "coded/head_bits", own.head_bits, kHeadBits, "share of heads",
              "Bits of a layer's KV heads under scope head: free (default) or equal (default "
              "with --for vllm: tensor parallel ranks reserve as much as the largest needs)");
  return options;
}

}  // namespace kvc
