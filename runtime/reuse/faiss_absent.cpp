// Builds without FAISS.
#include "core/error.h"
#include "runtime/reuse/faiss_match.h"

namespace kvc {

bool has_faiss() { return false; }

TokenMatch match_with_faiss(TokenSearch search, const at::Tensor&, const at::Tensor&) {
  fail("match={}: this build has no FAISS; use match=exact", to_string(search));
}

}  // namespace kvc
