// Settings of a coded conversion.
#pragma once

#include <string>
#include <vector>

#include "core/json.h"

namespace kvc {

// What is coded together in one basis.
enum class CodedScope { kHead, kLayer, kGroup };
// Widths that a coefficient's code may have: 0 to 8 bits, 0/2/4/8, or 0/4/8.
enum class CodeWidths { kAll, kPowers, kNibbles };
// Preference of --scope auto.
enum class Preference { kBalance, kSpeed, kCapacity };
enum class GainChoice { kAuto, kOn, kOff };

std::string to_string(CodedScope);
std::string to_string(CodeWidths);
std::string to_string(Preference);
std::string to_string(GainChoice);
CodedScope parse_coded_scope(const std::string&);  // Error lists the known ones; likewise below
CodeWidths parse_code_widths(const std::string&);
Preference parse_preference(const std::string&);
GainChoice parse_gain_choice(const std::string&);

// Ascending, from 0.
const std::vector<int>& widths_of(CodeWidths widths);

struct CodedSettings {
  // "auto", a scope for all layers, or scopes of ranges that cover the model: "head:0-5,group:6-11".
  std::string scope = "auto";
  CodeWidths widths = CodeWidths::kAll;
  Preference prefer = Preference::kBalance;
  GainChoice gain = GainChoice::kAuto;
};
Json to_json(const CodedSettings& settings);

}  // namespace kvc
