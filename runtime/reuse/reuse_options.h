// What reuse of another prompt's cache (SemShareKV) may be set to.
#pragma once

#include <cstdint>
#include <filesystem>
#include <string>

namespace kvc {

// What makes two prompts similar, from 0 to 1.
//   cosine     mean over the new prompt's tokens of the cosine with their match, at least 0
//   hamming30  mean of max(0, 1 - d / 30), d the bits in which 64 random signs of the two differ
enum class PromptSimilarity { kCosine, kHamming30 };
// Which share of the tokens each layer keeps, from the first layer's on.
//   decay     fewer in deep layers, down to `retain_last`
//   constant  the first layer's share
//   growth    more in deep layers, up to all
//   all       everything
enum class Retention { kDecay, kConstant, kGrowth, kAll };

// How a token's match is found.
//   exact      every pair is compared
//   faiss-lsh  the nearest of the 16 that differ least in 512 random signs
//   faiss-ivf  the nearest of the 16 found in the 8 nearest of sqrt(donor's tokens) clusters
enum class TokenSearch { kExact, kFaissLsh, kFaissIvf };

std::string to_string(PromptSimilarity);
std::string to_string(TokenSearch);
std::string to_string(Retention);

struct ReuseOptions {
  std::filesystem::path donors{};  // directory of the donor store; empty: nothing is reused
  std::int64_t store_bytes = std::int64_t{4} << 30;  // of all entries; the least recently used go
  bool store = true;  // keep the prompts that are read as a whole as donors

  PromptSimilarity similarity = PromptSimilarity::kCosine;
  TokenSearch match = TokenSearch::kExact;
  double min_similarity = 0.8;    // below it a prompt is read as a whole
  std::int64_t min_tokens = 700;  // likewise; shorter prompts are no donors either
  std::int64_t candidates = 4;    // donors that are matched token by token
  bool rerotate = false;          // turn reused keys to the new token's position

  double recovery = 0.55;          // share of the attention that goes to hot tokens
  double hot = 0.5, cold = 0.1;    // shares of hot and cold tokens that are computed anew
  double decay = 0.8;              // of that number from layer to layer, towards
  double least = 0.02;             // this share of all tokens,
  std::int64_t least_tokens = 32;  // at least so many

  Retention retention = Retention::kDecay;
  double retain_first = 0.8;  // share that the first layer keeps at least
  double retain_last = 0.4;   // share that the last layer keeps
};

// Sets what "key=value,key=value" names, with the words of docs/cli.md. UsageError for anything else.
void parse_reuse(const std::string& text, ReuseOptions& options);

}  // namespace kvc
