#include "runtime/policies/token_policies.h"

#include <algorithm>
#include <cmath>

#include "core/error.h"

namespace kvc {
namespace {

struct PolicyRules {
  TokenPolicyKind kind;
  void (*finish_prompt)(const TokenPolicy&, const KeptMembers&);
  void (*finish_token)(const TokenPolicy&, const KeptMembers&);
};

void keep_all(const TokenPolicy&, const KeptMembers&) {}

constexpr PolicyRules kRules[] = {
    {TokenPolicyKind::kStreamingLlm, finish_running_prompt, finish_running_token},
    {TokenPolicyKind::kH2o, finish_running_prompt, finish_running_token},
    {TokenPolicyKind::kZeroMerge, finish_running_prompt, finish_running_token},
    {TokenPolicyKind::kSnapKv, select_voted, keep_all},
    {TokenPolicyKind::kPyramidKv, select_voted, keep_all},
};

const PolicyRules& rules_of(const TokenPolicy& policy) {
  const auto* found = std::find_if(std::begin(kRules), std::end(kRules),
                                   [&](const PolicyRules& row) { return row.kind == policy.kind; });
  KVC_CHECK(found != std::end(kRules), "token policy {} keeps all tokens", to_string(policy.kind));
  return *found;
}

}  // namespace

std::int64_t scoring_queries(const TokenPolicy& policy, std::int64_t num_new) {
  if (!policy.has_scores()) {
    return std::min(num_new, policy.is_running() ? 0 : policy.window_tokens);
  }
  if (policy.lambda >= 1) {
    return num_new;
  }
  if (policy.lambda == 0) {
    return 1;
  }
  // A query gives at most 1: those before the last m add less than lambda^m / (1 - lambda).
  const double most = std::log(kScoreError * (1 - policy.lambda)) / std::log(policy.lambda);
  return std::min(num_new, static_cast<std::int64_t>(std::ceil(most)));
}

void finish_prompt(const TokenPolicy& policy, const KeptMembers& layers) {
  rules_of(policy).finish_prompt(policy, layers);
}

void finish_token(const TokenPolicy& policy, const KeptMembers& layers) {
  rules_of(policy).finish_token(policy, layers);
}

}  // namespace kvc
