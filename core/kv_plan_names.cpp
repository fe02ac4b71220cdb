#include <fmt/ranges.h>

#include <array>
#include <span>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/kv_plan.h"

namespace kvc {
namespace {

template <typename Enum>
struct Name {
  Enum value;
  std::string_view name;
};

constexpr std::array kMergeRules = {Name{MergeRule::kNone, "none"}, Name{MergeRule::kMean, "mean"},
                                    Name{MergeRule::kFisher, "fisher"},
                                    Name{MergeRule::kSensitivity, "sensitivity"},
                                    Name{MergeRule::kLs, "ls"}};
constexpr std::array kGranularities = {Name{Granularity::kToken, "token"},
                                       Name{Granularity::kGroup, "group"}};
constexpr std::array kPrefillModes = {Name{PrefillMode::kExact, "exact"},
                                      Name{PrefillMode::kTruncated, "truncated"}};
constexpr std::array kUnmergedForms = {Name{UnmergedForm::kPlain, "plain"},
                                       Name{UnmergedForm::kLatent, "latent"}};
constexpr std::array kKvDtypes = {Name{KvDtype::kFloat32, "float32"},
                                  Name{KvDtype::kBFloat16, "bfloat16"},
                                  Name{KvDtype::kFloat16, "float16"}};

template <typename Enum, std::size_t Size>
std::string name_of(const std::array<Name<Enum>, Size>& names, Enum value) {
  for (const Name<Enum>& row : names) {
    if (row.value == value) {
      return std::string(row.name);
    }
  }
  fail("unnamed enumeration value {}", static_cast<int>(value));
}

template <typename Enum, std::size_t Size>
Enum value_of(const std::array<Name<Enum>, Size>& names, const std::string& name,
              std::string_view what) {
  std::vector<std::string_view> known;
  for (const Name<Enum>& row : names) {
    if (row.name == name) {
      return row.value;
    }
    known.push_back(row.name);
  }
  fail("unknown {} '{}'; known: {}", what, name, fmt::join(known, ", "));
}

}  // namespace

std::string to_string(MergeRule value) { return name_of(kMergeRules, value); }
std::string to_string(Granularity value) { return name_of(kGranularities, value); }
std::string to_string(PrefillMode value) { return name_of(kPrefillModes, value); }
std::string to_string(UnmergedForm value) { return name_of(kUnmergedForms, value); }
std::string to_string(KvDtype value) { return name_of(kKvDtypes, value); }

MergeRule parse_merge_rule(const std::string& name) {
  return value_of(kMergeRules, name, "merge rule");
}
Granularity parse_granularity(const std::string& name) {
  return value_of(kGranularities, name, "granularity");
}
PrefillMode parse_prefill_mode(const std::string& name) {
  return value_of(kPrefillModes, name, "prefill mode");
}
UnmergedForm parse_unmerged_form(const std::string& name) {
  return value_of(kUnmergedForms, name, "form of unmerged tokens");
}
KvDtype parse_kv_dtype(const std::string& name) { return value_of(kKvDtypes, name, "KV dtype"); }

int bytes_per_element(KvDtype dtype) { return dtype == KvDtype::kFloat32 ? 4 : 2; }

}  // namespace kvc
