#include "validate/text_overlap.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <unordered_set>

namespace kvc {
namespace {

constexpr double kMostShare = 0.01;
constexpr std::size_t kPassagesNamed = 3;

// hashes[i]: of tokens i to i + kOverlapTokens - 1.
std::vector<std::uint64_t> run_hashes(const std::vector<std::int64_t>& tokens) {
  constexpr std::uint64_t kBase = 0x9E3779B97F4A7C15;
  std::uint64_t oldest = 1, hash = 0;  // oldest: the weight of a token that leaves the run
  std::vector<std::uint64_t> hashes;
  for (std::size_t i = 0; i < tokens.size(); ++i) {
    hash = hash * kBase + static_cast<std::uint64_t>(tokens[i]) + 1;
    if (i < kOverlapTokens) {
      oldest *= kBase;
    } else {
      hash -= oldest * (static_cast<std::uint64_t>(tokens[i - kOverlapTokens]) + 1);
    }
    if (i + 1 >= kOverlapTokens) {
      hashes.push_back(hash);
    }
  }
  return hashes;
}

}  // namespace

double TextOverlap::share() const {
  std::int64_t tokens = 0;
  for (const Passage& passage : passages) {
    tokens += passage.count;
  }
  return num_tokens == 0 ? 0 : static_cast<double>(tokens) / static_cast<double>(num_tokens);
}

TextOverlap find_overlap(const TokenSet& evaluation, const TokenSet& calibration) {
  std::unordered_set<std::uint64_t> known;
  for (const auto& sequence : calibration.sequences) {
    for (const std::uint64_t hash : run_hashes(sequence)) {
      known.insert(hash);
    }
  }
  TextOverlap overlap{.num_tokens = evaluation.num_tokens()};
  for (std::size_t sequence = 0; sequence < evaluation.sequences.size(); ++sequence) {
    const std::vector<std::uint64_t> hashes = run_hashes(evaluation.sequences[sequence]);
    std::int64_t end = -1;  // of this sequence's last passage
    for (std::int64_t first = 0; first < static_cast<std::int64_t>(hashes.size()); ++first) {
      if (!known.contains(hashes[static_cast<std::size_t>(first)])) {
        continue;
      }
      if (first > end) {
        overlap.passages.push_back(
            {.sequence = static_cast<std::int64_t>(sequence), .first = first});
      }
      end = first + kOverlapTokens;
      overlap.passages.back().count = end - overlap.passages.back().first;
    }
  }
  return overlap;
}

Json to_json(const TextOverlap& overlap) {
  Json passages = Json::array();
  for (const TextOverlap::Passage& passage : overlap.passages) {
    passages.push_back(
        {{"sequence", passage.sequence}, {"first", passage.first}, {"tokens", passage.count}});
  }
  return {{"share", overlap.share()}, {"least_tokens", kOverlapTokens}, {"passages", passages}};
}

std::string overlap_warning(const TextOverlap& overlap) {
  if (overlap.share() <= kMostShare) {
    return "";
  }
  std::vector<TextOverlap::Passage> longest = overlap.passages;
  std::stable_sort(longest.begin(), longest.end(),
                   [](const auto& a, const auto& b) { return a.count > b.count; });
  longest.resize(std::min(longest.size(), kPassagesNamed));
  std::vector<std::string> places;
  for (const TextOverlap::Passage& passage : longest) {
    places.push_back(fmt::format("{} tokens of sequence {} from token {} on", passage.count,
                                 passage.sequence, passage.first));
  }
  return fmt::format(
      "{:.2g} % of the evaluation text stands in the calibration text, too ({}{}): results on "
      "unseen "
      "text are worse; give another text to kvconvert --validation-text or --calibration",
      100 * overlap.share(), fmt::join(places, ", "),
      overlap.passages.size() > longest.size()
          ? fmt::format(", and {} more passages", overlap.passages.size() - longest.size())
          : "");
}

}  // namespace kvc
