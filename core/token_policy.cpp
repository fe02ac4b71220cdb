#include "core/token_policy.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <cmath>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/parse_number.h"
#include "core/settings_text.h"

namespace kvc {
namespace {

constexpr double kMostTokens = std::int64_t{1} << 30;

struct Value {
  std::string_view policy, key, text;

  [[noreturn]] void refuse(std::string_view expected) const {
    throw UsageError(fmt::format("--policy {}: {}={}: expected {}", policy, key, text, expected));
  }
  double number(double least, double most, std::string_view expected) const {
    double number = 0;
    if (!parse_number(text, number) || !(number >= least) || !(number <= most)) {
      refuse(expected);
    }
    return number;
  }
  std::int64_t tokens(std::int64_t least) const {
    const std::string expected = fmt::format("{} to {}", least, kMostTokens);
    const double found = number(static_cast<double>(least), kMostTokens, expected);
    if (found != std::floor(found)) {
      refuse(expected);
    }
    return static_cast<std::int64_t>(found);
  }
  // true for `second`
  bool choice(std::string_view first, std::string_view second) const {
    if (text != first && text != second) {
      refuse(fmt::format("{} or {}", first, second));
    }
    return text == second;
  }
  TokenBudget budget() const {
    constexpr std::string_view kExpected =
        "a number of tokens, or a share of the prompt such as 0.1 or 10%";
    if (text.ends_with('%')) {
      const Value share{policy, key, text.substr(0, text.size() - 1)};
      return {.share = share.number(0, 100, kExpected) / 100};
    }
    if (text.find_first_of(".eE") != std::string_view::npos) {
      return {.share = number(0, 1, kExpected)};
    }
    return {.share = 0, .tokens = static_cast<std::int64_t>(number(1, kMostTokens, kExpected))};
  }
};

// A setting: how it is read, and how it is said.
struct Setting {
  std::string_view key;
  void (*read)(const Value&, TokenPolicy&);
  std::string (*text)(const TokenPolicy&);
};

std::string to_string(const TokenBudget& budget) {
  return budget.tokens > 0 ? std::to_string(budget.tokens) : fmt::format("{}%", 100 * budget.share);
}

const Setting kSettings[] = {
    {"budget", [](const Value& v, TokenPolicy& p) { p.budget = v.budget(); },
     [](const TokenPolicy& p) { return to_string(p.budget); }},
    {"sink", [](const Value& v, TokenPolicy& p) { p.sink_tokens = v.tokens(0); },
     [](const TokenPolicy& p) { return std::to_string(p.sink_tokens); }},
    {"window", [](const Value& v, TokenPolicy& p) { p.window_tokens = v.tokens(1); },
     [](const TokenPolicy& p) { return std::to_string(p.window_tokens); }},
    {"pos", [](const Value& v, TokenPolicy& p) { p.cache_positions = v.choice("true", "cache"); },
     [](const TokenPolicy& p) { return std::string(p.cache_positions ? "cache" : "true"); }},
    {"ring",
     [](const Value& v, TokenPolicy& p) { p.ring_share = v.number(0, 1, "a share from 0 to 1"); },
     [](const TokenPolicy& p) { return fmt::format("{}", p.ring_share); }},
    {"residual", [](const Value& v, TokenPolicy& p) { p.residual_slots = v.tokens(0); },
     [](const TokenPolicy& p) { return std::to_string(p.residual_slots); }},
    {"lambda",
     [](const Value& v, TokenPolicy& p) { p.lambda = v.number(0, 1, "a number from 0 to 1"); },
     [](const TokenPolicy& p) { return fmt::format("{}", p.lambda); }},
    {"alpha",
     [](const Value& v, TokenPolicy& p) { p.alpha = v.number(0, 8, "a number from 0 to 8"); },
     [](const TokenPolicy& p) { return fmt::format("{}", p.alpha); }},
    {"prefill-merge",
     [](const Value& v, TokenPolicy& p) { p.contiguous_merge = v.choice("argmax", "contiguous"); },
     [](const TokenPolicy& p) {
       return std::string(p.contiguous_merge ? "contiguous" : "argmax");
     }},
    {"decode",
     [](const Value& v, TokenPolicy& p) { p.released_step = v.choice("paper", "released"); },
     [](const TokenPolicy& p) { return std::string(p.released_step ? "released" : "paper"); }},
    {"compress-at",
     [](const Value& v, TokenPolicy& p) { p.compress_chunks = v.choice("end", "chunk"); },
     [](const TokenPolicy& p) { return std::string(p.compress_chunks ? "chunk" : "end"); }},
    {"pool", [](const Value& v, TokenPolicy& p) { p.pool_width = v.tokens(1); },
     [](const TokenPolicy& p) { return std::to_string(p.pool_width); }},
    {"beta",
     [](const Value& v, TokenPolicy& p) { p.beta = v.number(1, 1e6, "a number of 1 or more"); },
     [](const TokenPolicy& p) { return fmt::format("{}", p.beta); }},
    {"share",
     [](const Value& v, TokenPolicy& p) {
       p.pruned_share = v.number(0, 0.95, "a share from 0 to 0.95");
     },
     [](const TokenPolicy& p) { return fmt::format("{}", p.pruned_share); }},
};

// Columns are what TokenPolicy's functions of these names say.
struct PolicyRow {
  std::string_view name;
  std::string_view keys;  // of its settings, separated by commas; empty: it has none
  TokenPolicy defaults;
  bool is_running = false, has_scores = false, keeps_last = false, narrows = false,
       prunes_channels = false;
};

// In the order of TokenPolicyKind.
constexpr PolicyRow kPolicies[] = {
    {.name = "full", .keys = "", .defaults = {.kind = TokenPolicyKind::kFull}},
    {.name = "streamingllm",
     .keys = "sink,window,pos",
     .defaults = {.kind = TokenPolicyKind::kStreamingLlm, .sink_tokens = 4, .window_tokens = 1020},
     .is_running = true,
     .keeps_last = true},
    {.name = "h2o",
     .keys = "budget,ring,sink,compress-at",
     .defaults = {.kind = TokenPolicyKind::kH2o, .ring_share = 0.5},
     .is_running = true,
     .has_scores = true},
    {.name = "zeromerge",
     .keys = "budget,ring,residual,sink,lambda,alpha,prefill-merge,decode,compress-at",
     .defaults = {.kind = TokenPolicyKind::kZeroMerge, .residual_slots = 1, .lambda = 0.98},
     .is_running = true,
     .has_scores = true},
    {.name = "snapkv",
     .keys = "budget,window,pool",
     .defaults = {.kind = TokenPolicyKind::kSnapKv, .window_tokens = 32}},
    {.name = "pyramidkv",
     .keys = "budget,window,pool,beta",
     .defaults = {.kind = TokenPolicyKind::kPyramidKv, .window_tokens = 32},
     .narrows = true},
    {.name = "think",
     .keys = "share,window",
     .defaults = {.kind = TokenPolicyKind::kThink, .window_tokens = 32},
     .prunes_channels = true},
};

const PolicyRow& row_of(TokenPolicyKind kind) { return kPolicies[static_cast<std::size_t>(kind)]; }

const Setting& setting_of(std::string_view key) {
  return *std::find_if(std::begin(kSettings), std::end(kSettings),
                       [key](const Setting& setting) { return setting.key == key; });
}

void read_settings(std::string_view text, const PolicyRow& row, TokenPolicy& policy) {
  const auto keys = row.keys.empty() ? std::vector<std::string_view>() : split(row.keys, ',');
  for (const auto& [key, value] :
       parse_settings(fmt::format("--policy {}", row.name), text, keys)) {
    setting_of(key).read({row.name, key, value}, policy);
  }
}

void check_room(const TokenPolicy& policy) {
  const std::int64_t budget = policy.budget.tokens, least = policy.least_budget();
  if (policy.keeps_last() || budget == 0) {
    return;
  }
  KVC_CHECK_USAGE(
      budget >= least,
      "--policy {}: a budget of {} tokens has no room for {}{} sinks, the last tokens and "
      "one more; expected {} or more",
      to_string(policy.kind), budget,
      policy.residual_slots > 0 ? fmt::format("{} residual slots, ", policy.residual_slots) : "",
      policy.sink_tokens, least);
  const std::int64_t fixed =
      policy.residual_slots + policy.sink_tokens + ring_tokens(policy, budget);
  KVC_CHECK_USAGE(!policy.is_running() || budget > fixed,
                  "--policy {}: a budget of {} tokens is less than the {} of residual slots, "
                  "sinks and ring and one more; lower ring={}",
                  to_string(policy.kind), budget, fixed, policy.ring_share);
}

}  // namespace

bool TokenPolicy::is_running() const { return row_of(kind).is_running; }
bool TokenPolicy::has_scores() const { return row_of(kind).has_scores; }
bool TokenPolicy::keeps_last() const { return row_of(kind).keeps_last; }
bool TokenPolicy::narrows() const { return row_of(kind).narrows; }
bool TokenPolicy::prunes_channels() const { return row_of(kind).prunes_channels; }

std::string to_string(TokenPolicyKind kind) { return std::string(row_of(kind).name); }

TokenPolicy parse_token_policy(const std::string& text) {
  const std::size_t colon = text.find(':');
  const std::string_view name = std::string_view(text).substr(0, colon);
  std::vector<std::string_view> names;
  for (const PolicyRow& row : kPolicies) {
    names.push_back(row.name);
    if (row.name != name) {
      continue;
    }
    TokenPolicy policy = row.defaults;
    if (colon != std::string::npos) {
      read_settings(std::string_view(text).substr(colon + 1), row, policy);
    }
    check_room(policy);
    return policy;
  }
  throw UsageError(
      fmt::format("--policy {}: unknown policy; known: {}", text, fmt::join(names, ", ")));
}

std::string to_string(const TokenPolicy& policy) {
  const PolicyRow& row = row_of(policy.kind);
  std::string text(row.name);
  for (const std::string_view key : split(row.keys, ',')) {
    text += key.empty() ? ""
                        : fmt::format("{}{}={}", text == row.name ? ':' : ',', key,
                                      setting_of(key).text(policy));
  }
  return text;
}

}  // namespace kvc
