#include "model/statistics_provenance.h"

#include <utility>

namespace kvc {

Provenance statistics_provenance(const std::string& kind, const Checkpoint& checkpoint,
                                 const TokenSet& tokens, const ComputePlace& place, Json options) {
  Provenance provenance;
  provenance.kind = kind;
  provenance.checkpoint_hash = checkpoint.hash();
  provenance.tokens_hash = tokens.hash();
  provenance.options = std::move(options);
  provenance.options["compute_dtype"] = compute_dtype_name(place);
  return provenance;
}

}  // namespace kvc
