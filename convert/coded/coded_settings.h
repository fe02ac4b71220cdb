// Settings of a coded conversion.
#pragma once

#include <string>
#include <vector>

#include "convert/convert.h"

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
CodedScope parse_coded_scope(const std::string&);  // Error lists the known ones

// Ascending, from 0.
const std::vector<int>& widths_of(CodeWidths widths);

struct CodedSettings {
  // "auto", a scope for all layers, or scopes of ranges that cover the model: "head:0-5,group:6-11".
  std::string scope = "auto";
  CodeWidths widths = CodeWidths::kAll;
  Preference prefer = Preference::kBalance;
  GainChoice gain = GainChoice::kAuto;
};
Options coded_options(ConvertSettings& settings);

}  // namespace kvc
