// Which tokens of a prompt are computed anew, and which each layer keeps (SemShareKV, sections 4.3.3 and
// 4.3.4). Token sets are ascending int64 lists; ties go to the earlier token.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "runtime/reuse/reuse_options.h"

namespace kvc {

// Tokens that attention goes to.
struct HotTokens {
  at::Tensor hot;    // the fewest that receive `recovery` of all attention
  double ratio = 0;  // of all tokens, the paper's r_dynamic
};

// attention [num_tokens]: what each receives, of all queries.
HotTokens hot_tokens(const at::Tensor& attention, double recovery);

// S_1: of the hot and of the cold tokens the shares whose keys and values deviate most, and the last token.
// deviation [num_tokens].
at::Tensor first_recomputed(const at::Tensor& deviation, const HotTokens& hot,
                            const ReuseOptions& options);
// |S_layer| for layer >= 1: n_end + (|S_1| - n_end) decay^(layer - 1) with n_end = max(least_tokens, least *
// num_tokens), never more than |S_1|.
std::int64_t num_recomputed(std::int64_t layer, std::int64_t first_count, std::int64_t num_tokens,
                            const ReuseOptions& options);
// The next set: of `count` tokens with the largest deviation, the last one always among them. Indices into the
// present set; deviation [its size].
at::Tensor next_recomputed(const at::Tensor& deviation, std::int64_t count);

// How many tokens a layer keeps. The first keeps rho_0 = max(retain_first, ratio of hot ones); then with x =
// layer / (num_layers - 1): decay rho_0 (retain_last / rho_0)^x, constant rho_0, growth rho_0^(1 - x).
std::int64_t num_retained(int layer, int num_layers, std::int64_t num_tokens, double hot_ratio,
                          const ReuseOptions& options);
// Those: the last token, then recomputed ones, then hot ones, then the others; within each the ones that
// receive most attention. attention [num_tokens].
at::Tensor retained_tokens(std::int64_t count, const at::Tensor& recomputed, const at::Tensor& hot,
                           const at::Tensor& attention);

}  // namespace kvc
