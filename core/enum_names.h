// Names of enumerators in files and flags: one table per enumeration.
#pragma once

#include <fmt/ranges.h>

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include "core/error.h"

namespace kvc {

template <typename Enum>
struct EnumName {
  Enum value;
  std::string_view name;
};

template <typename Enum, std::size_t Size>
std::string name_of(const EnumName<Enum> (&names)[Size], Enum value) {
  for (const EnumName<Enum>& row : names) {
    if (row.value == value) {
      return std::string(row.name);
    }
  }
  fail("unnamed enumeration value {}", static_cast<int>(value));
}

// Error "unknown <what> '<name>'; known: ..." for an unknown word.
template <typename Enum, std::size_t Size>
Enum value_of(const EnumName<Enum> (&names)[Size], const std::string& name, std::string_view what) {
  std::vector<std::string_view> known;
  for (const EnumName<Enum>& row : names) {
    if (row.name == name) {
      return row.value;
    }
    known.push_back(row.name);
  }
  fail("unknown {} '{}'; known: {}", what, name, fmt::join(known, ", "));
}

}  // namespace kvc
