// Settings of a coded conversion.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "convert/convert.h"

namespace kvc {

// What is coded together in one basis.
enum class CodedScope { kHead, kLayer, kGroup };
// The transform of keys, from the best for its bytes to the fastest to read.
//   full     keys and values in one basis
//   keys     keys in a basis of their own, values in another, likewise below
//   blocks   keys of a head in some bases of neighbouring rotary pairs
//   pairs    every rotary pair in a basis of its own
//   rotated  pairs after RoPE, with one step for both channels: queries meet codes directly
//   auto     chosen when statistics are known (convert/coded/form_choice.h)
enum class KeyTransform { kFull, kKeys, kBlocks, kPairs, kRotated, kAuto };
struct CodedForm {
  KeyTransform keys = KeyTransform::kFull;
  int blocks = 4;  // bases of a head's keys, for form blocks

  bool operator==(const CodedForm&) const = default;
};
// Widths that a coefficient's code may have: 0 to 8 bits, 0/2/4/8, or 0/4/8.
enum class CodeWidths { kAll, kPowers, kNibbles };
// Preference of --scope auto.
enum class Preference { kBalance, kSpeed, kCapacity };
enum class GainChoice { kAuto, kOn, kOff };
// Bits of a layer's KV heads where each is coded apart: shared out by what they save, or equally many for all. Tensor
// parallel ranks of an engine reserve what the largest rank takes.
enum class HeadBits { kFree, kEqual };

std::string to_string(CodedScope);
std::string to_string(CodeWidths);
std::string to_string(const CodedForm&);           // "blocks:4"
CodedScope parse_coded_scope(const std::string&);  // Error lists the known ones
CodedForm parse_coded_form(const std::string&);    // UsageError likewise

// Ascending, from 0.
const std::vector<int>& widths_of(CodeWidths widths);

struct CodedSettings {
  // "auto", a scope for all layers, or scopes of ranges that cover the model: "head:0-5,group:6-11".
  std::string scope = "auto";
  std::string
      form;  // as to_string(CodedForm), or "blocks"; empty: auto if speed is preferred, else full
  std::int64_t products =
      0;  // that form auto may spend on rebuilding a key; 0: as many as its rule says
  CodeWidths widths = CodeWidths::kAll;
  Preference prefer = Preference::kBalance;
  GainChoice gain = GainChoice::kAuto;
  HeadBits head_bits = HeadBits::kFree;
};
Options coded_options(ConvertSettings& settings);

}  // namespace kvc
