// What a cache takes while a prompt is read: the counts that runtime/compression/prompt_compression.h goes through.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/memory/memory_forecast.h"
#include "runtime/policies/merge_selection.h"

namespace kvc {

// Of `count` tokens behind those of a cache without a token policy, whose counts it moves on.
class PromptForecast {
 public:
  PromptForecast(CacheForecast& cache, std::int64_t count);
  std::int64_t read();  // most bytes on the way

 private:
  void add(std::int64_t bytes) { change(bytes, bytes); }
  // So many bytes more for a while, and then.
  void change(std::int64_t most, std::int64_t then);
  void store(int layer);
  void code_plain(int layer);
  void code(const CodedLayers& layers);
  void merge_pair(PairTokens& pair);
  void compress_group(int group);
  void prepare_groups();
  void set_group(int group, const GroupTokens& tokens);
  void merge_ahead(int group);
  void decide(int group, std::int64_t merged);
  std::int64_t bytes_of(int group, const GroupTokens& tokens) const;
  std::int64_t exact_bytes(std::int64_t tokens) const;  // of one layer

  CacheForecast& cache_;
  const KvPlan& plan_;
  std::int64_t count_, num_tokens_;
  std::int64_t now_, peak_;
  std::vector<GroupTokens> with_prompt_, principal_;  // of groups once they have it; and compressed
  MergeCandidates candidates_;                        // of groups of weights
  std::vector<std::int64_t> merged_;                  // of them, ahead
  bool merges_any_ = false;
};

}  // namespace kvc
