#include "runtime/policies/principal_policy.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

GroupTokens after(const KvPlan& plan, const GroupTokens& before, std::int64_t count,
                  bool new_basis) {
  GroupTokens tokens = before;
  if (plan.selective) {
    tokens.outliers += plan.selective->new_outliers(before.merged, before.outliers, count);
  }
  tokens.pending -= count;
  tokens.merged += count;
  tokens.bases += new_basis ? 1 : 0;
  return tokens;
}

// Without rounding to pages, so that a longer text never falls back.
bool basis_saves(const KvPlan& plan, const std::vector<GroupTokens>& tokens,
                 const std::vector<std::int64_t>& counts, KvDtype dtype) {
  std::int64_t change = 0;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    const int group = static_cast<int>(i);
    change += group_bytes(plan, group, after(plan, tokens[i], counts[i], true), dtype) -
              group_bytes(plan, group, tokens[i], dtype);
  }
  return change < 0;
}

}  // namespace

PrincipalStep principal_step(const KvPlan& plan, const std::vector<GroupTokens>& tokens,
                             const std::vector<std::int64_t>& counts, KvDtype dtype) {
  const auto is_none = [](std::int64_t count) { return count <= 0; };
  if (std::all_of(counts.begin(), counts.end(), is_none) ||
      (plan.request && std::any_of(counts.begin(), counts.end(), is_none))) {
    return PrincipalStep::kKeepExact;
  }
  if (!plan.request) {
    return PrincipalStep::kProject;
  }
  const bool first = tokens.front().bases == 0;
  if (!first && plan.request->later != LaterTokens::kNewSegment) {
    return plan.request->later == LaterTokens::kProject ? PrincipalStep::kProject
                                                        : PrincipalStep::kKeepExact;
  }
  return basis_saves(plan, tokens, counts, dtype) ? PrincipalStep::kNewBasis
                                                  : PrincipalStep::kKeepExact;
}

PrincipalStep apply_principal_step(const KvPlan& plan, const std::vector<std::int64_t>& counts,
                                   KvDtype dtype, std::vector<GroupTokens>& tokens) {
  const PrincipalStep step = principal_step(plan, tokens, counts, dtype);
  if (step != PrincipalStep::kKeepExact) {
    for (std::size_t i = 0; i < tokens.size(); ++i) {
      tokens[i] = after(plan, tokens[i], counts[i], step == PrincipalStep::kNewBasis);
    }
  }
  return step;
}

void check_generated_block(const KvPlan& plan, KvDtype dtype) {
  if (!plan.request || !plan.request->compress_generated) {
    return;
  }
  const std::int64_t least = break_even_tokens(plan, dtype);
  KVC_CHECK(plan.compression.block_tokens >= least,
            "a basis for {} generated tokens saves nothing in a {} cache: expected "
            "--recompress-every {} or more, or --later exact",
            plan.compression.block_tokens, to_string(dtype), least);
}

}  // namespace kvc
