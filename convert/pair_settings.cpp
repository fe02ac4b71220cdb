#include "convert/pair_settings.h"

#include <cmath>

#include "core/enum_names.h"
#include "core/error.h"

namespace kvc {
namespace {

constexpr EnumName<PairRetention> kRetentions[] = {{PairRetention::kDifferent, "different"},
                                                   {PairRetention::kInverted, "inverted"}};

void check_share(const char* flag, double value) {
  KVC_CHECK_USAGE(std::isfinite(value) && value >= 0 && value <= 1, "{} {}: expected 0 to 1", flag,
                  value);
}

}  // namespace

std::string to_string(PairRetention value) { return name_of(kRetentions, value); }
PairRetention parse_pair_retention(const std::string& name) {
  return value_of(kRetentions, name, "choice of retained tokens");
}

Json to_json(const PairSettings& settings) {
  return {{"retention", to_string(settings.retention)},
          {"position", settings.position},
          {"retained", settings.retained}};
}

void check_ranges(const PairSettings& settings) {
  check_share("--minicache-position", settings.position);
  check_share("--minicache-retained", settings.retained);
}

}  // namespace kvc
