#include "convert/pair_settings.h"

namespace kvc {
namespace {

constexpr EnumName<PairRetention> kRetentions[] = {{PairRetention::kDifferent, "different"},
                                                   {PairRetention::kInverted, "inverted"}};

bool is_part(double share) { return share >= 0 && share <= 1; }

}  // namespace

Options pair_options(ConvertSettings& settings) {
  PairSettings& own = settings.own<PairSettings>();
  Options options;
  options.add("--minicache", "pairing/retention", own.retention, kRetentions,
              "choice of retained tokens",
              "minicache: retained are the tokens whose layers are most different (default), or "
              "inverted: most alike");
  options.add("--minicache-position", "pairing/position", own.position,
              "minicache: shared direction, from the lower layer's (0) to the upper one's (1)",
              "0 to 1", is_part);
  options.add("--minicache-retained", "pairing/retained", own.retained,
              "minicache: share of the range of angles, and most tokens, that are retained",
              "0 to 1", is_part);
  return options;
}

}  // namespace kvc
