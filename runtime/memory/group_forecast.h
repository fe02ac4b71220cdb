// The forecast of latent groups: each of them, and the choice of the tokens that merge, over all.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/layer_forecast.h"
#include "runtime/policies/merge_selection.h"

namespace kvc {

// A latent group. Under a token policy it is known how many tokens it keeps; which of them are latents follows the text, and
// bytes are the most that there can be: latents leave first.
class GroupForecast : public LayerForecast {
 public:
  GroupForecast(const ForecastSettings& settings, int group, const KvCache* cache);

  std::int64_t rows() const override;
  std::int64_t bytes() const override;
  std::int64_t tokens_until_due() const override;
  const GroupTokens& tokens() const { return kept_.tokens; }
  void set_tokens(const GroupTokens& tokens, PassBytes& pass);
  void set_compressed(PassBytes& pass);
  // For one layer that holds these.
  std::int64_t layer_bytes(const GroupTokens& tokens) const;
  // Most bytes while unmerged tokens are exact, before they become codes.
  std::int64_t bytes_before_codes() const;

 private:
  void store(int layer, std::int64_t count) override;
  void remove(std::int64_t count, bool is_step) override;
  bool leaves_later() const;
  std::int64_t bytes_of(KeptGroupTokens kept) const;
  std::int64_t most_bytes() const;
  void note_forms(const GroupTokens& tokens);

  int group_;
  const LatentGroup& spec_;
  KeptGroupTokens kept_;
  bool is_compressed_ = true;  // since it last read a prompt
  // Some tokens have had this form, and may still have it.
  bool has_unmerged_ = false, has_merged_ = false;
};

// Tokens of all groups that are due, of a sequence of num_tokens, when the groups hold `tokens`. layer_tokens
// [num_layers]: what each layer holds; empty: all.
class MergeForecast {
 public:
  MergeForecast(const ForecastSettings& settings, std::vector<GroupForecast>& groups,
                std::vector<GroupTokens> tokens, bool prompt_ended, std::int64_t num_tokens,
                std::vector<std::int64_t> layer_tokens);

  // For a prompt, as PromptCompression does: the groups in turn, each after it has read all.
  void compress_group(std::size_t group, PassBytes& pass);
  // All groups together.
  void compress(PassBytes& pass);

 private:
  std::vector<std::int64_t> count_merges(std::size_t num_ranked);
  void merge_ahead(std::size_t group, std::int64_t merged, PassBytes& pass);
  void decide(std::size_t group, std::int64_t merged, PassBytes& pass);

  const ForecastSettings& settings_;
  std::vector<GroupForecast>& groups_;
  std::vector<GroupTokens> principal_;  // where all have latents: what groups hold then
  MergeCandidates candidates_;          // elsewhere
  std::vector<std::int64_t> ahead_;     // of them, that have merged already
  bool is_due_ = false, merges_any_ = false;
};

}  // namespace kvc
