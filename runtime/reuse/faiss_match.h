// Matches of tokens that FAISS finds: approximate, for donors of so many tokens that comparing all pairs takes
// long. Part of builds with KVC_FAISS.
#pragma once

#include "runtime/reuse/token_match.h"

namespace kvc {

bool has_faiss();

// As match_tokens, but each token is compared with 16 of the donor's, those that an index finds nearest
// (kFaissLsh, kFaissIvf). The same every time. Error where has_faiss() is false.
TokenMatch match_with_faiss(TokenSearch search, const at::Tensor& target, const at::Tensor& donor);

}  // namespace kvc
