#include "runtime/reuse/reuse_options.h"

#include <algorithm>
#include <functional>
#include <string_view>
#include <vector>

#include "core/enum_names.h"
#include "core/error.h"
#include "core/parse_number.h"
#include "core/settings_text.h"
#include "runtime/memory/memory_budget.h"
#include "runtime/reuse/faiss_match.h"

namespace kvc {
namespace {

constexpr EnumName<PromptSimilarity> kSimilarities[] = {
    {PromptSimilarity::kCosine, "cosine"}, {PromptSimilarity::kHamming30, "hamming30"}};
constexpr EnumName<Retention> kRetentions[] = {{Retention::kDecay, "decay"},
                                               {Retention::kConstant, "constant"},
                                               {Retention::kGrowth, "growth"},
                                               {Retention::kAll, "all"}};
constexpr EnumName<TokenSearch> kSearches[] = {{TokenSearch::kExact, "exact"},
                                               {TokenSearch::kFaissLsh, "faiss-lsh"},
                                               {TokenSearch::kFaissIvf, "faiss-ivf"}};
constexpr EnumName<bool> kSwitch[] = {{true, "on"}, {false, "off"}};

constexpr std::int64_t kMostTokens = std::int64_t{1} << 30;

template <typename Number>
Number number(const std::string& key, const std::string& text, Number least, Number most) {
  Number value{};
  KVC_CHECK_USAGE(parse_number(text, value) && value >= least && value <= most,
                  "--reuse {}={}: expected a {} from {} to {}", key, text,
                  std::is_integral_v<Number> ? "whole number" : "number", least, most);
  return value;
}

struct ReuseSetting {
  std::string key;
  std::function<void(const std::string&)> set;
};

template <typename Enum, std::size_t Size>
ReuseSetting word(const std::string& key, Enum& out, const EnumName<Enum> (&names)[Size]) {
  return {key, [key, &out, &names](const std::string& text) {
            try {
              out = value_of(names, text, key);
            } catch (const Error& error) {
              fail_usage("--reuse: {}", error.what());
            }
          }};
}

ReuseSetting share(const std::string& key, double& out) {
  return {key, [key, &out](const std::string& text) { out = number(key, text, 0.0, 1.0); }};
}

ReuseSetting tokens(const std::string& key, std::int64_t& out, std::int64_t least) {
  return {key, [key, &out, least](const std::string& text) {
            out = number(key, text, least, kMostTokens);
          }};
}

std::vector<ReuseSetting> settings(ReuseOptions& options) {
  return {word("similarity", options.similarity, kSimilarities),
          word("match", options.match, kSearches),
          share("min-similarity", options.min_similarity),
          tokens("min-tokens", options.min_tokens, 1),
          tokens("candidates", options.candidates, 1),
          word("rerotate", options.rerotate, kSwitch),
          share("recovery", options.recovery),
          share("hot", options.hot),
          share("cold", options.cold),
          share("decay", options.decay),
          share("least", options.least),
          tokens("least-tokens", options.least_tokens, 1),
          word("retention", options.retention, kRetentions),
          share("retain-first", options.retain_first),
          share("retain-last", options.retain_last),
          word("store", options.store, kSwitch),
          {"size", [&options](const std::string& text) {
             options.store_bytes = parse_bytes("--reuse size", text);
           }}};
}

}  // namespace

std::string to_string(PromptSimilarity similarity) { return name_of(kSimilarities, similarity); }
std::string to_string(TokenSearch search) { return name_of(kSearches, search); }
std::string to_string(Retention retention) { return name_of(kRetentions, retention); }

void parse_reuse(const std::string& text, ReuseOptions& options) {
  const std::vector<ReuseSetting> known = settings(options);
  std::vector<std::string_view> keys;
  for (const ReuseSetting& setting : known) {
    keys.push_back(setting.key);
  }
  if (!text.empty()) {
    for (const auto& [key, value] : parse_settings("--reuse", text, keys)) {
      std::ranges::find(known, key, &ReuseSetting::key)->set(std::string(value));
    }
  }
  KVC_CHECK_USAGE(options.match == TokenSearch::kExact || has_faiss(),
                  "--reuse match={}: this build has no FAISS; use match=exact, or install "
                  "libfaiss-dev and build with -DKVC_FAISS=ON",
                  to_string(options.match));
}

}  // namespace kvc
