// Byte-pair encoding of one word: characters become tokens, then neighbours merge, lowest rank
// first and leftmost among equals.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/bpe.h"
#include "model/tokenizer/component.h"
#include "model/tokenizer/merge_table.h"
#include "model/tokenizer/vocabulary.h"

namespace kvc {

struct BpeModel {
  Vocabulary vocabulary;
  MergeTable merges;
  std::string unknown_token;            // empty: unknown characters are dropped
  std::optional<std::int32_t> unknown;  // its id; without one unknown characters are an Error
  bool fuse_unknown = false;            // neighbouring unknown characters become one token
  bool byte_fallback = false;  // unknown characters become tokens of their bytes, if all exist
  bool ignore_merges = false;  // a word that is a token stays whole
  std::string prefix;          // of every character but a word's first
  std::string suffix;          // of a word's last character
  std::vector<std::int32_t> byte_tokens;  // [256]; -1: the vocabulary lacks it
};

// tokenizer.json's "model": a BPE, read and checked.
BpeModel read_bpe_model(const TokenizerJson& json, const std::string& subject);

// Appends the ids of `word`, which is valid UTF-8, in time O(n log n).
void bpe_encode(const BpeModel& model, std::string_view word, std::vector<std::int64_t>& ids);

// Remembers the ids of short words; lives for one text.
class BpeCache {
 public:
  explicit BpeCache(const BpeModel& model) : model_(model) {}
  void encode(std::string_view word, std::vector<std::int64_t>& ids);

 private:
  const BpeModel& model_;
  StringMap<std::vector<std::int64_t>> words_;
};

}  // namespace kvc
