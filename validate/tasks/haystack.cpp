#include "validate/tasks/haystack.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {
namespace {

constexpr std::string_view kSpace = " \t\r\n\f\v";
constexpr std::string_view kNoiseSentences[] = {
    "The river runs down to the sea.", "A lamp burns in the hall.", "Rain falls on the roof.",
    "The road goes on and comes back again."};

// Whether a sentence ends with the word; quotes and brackets may follow its stop.
bool ends_sentence(std::string_view word) {
  for (const std::string_view closing : {"\"", "'", ")", "]", "_", "\u201d", "\u2019"}) {
    if (word.ends_with(closing)) {
      return ends_sentence(word.substr(0, word.size() - closing.size()));
    }
  }
  return word.ends_with('.') || word.ends_with('!') || word.ends_with('?');
}

// Ascending; all different if `count` <= `places`.
std::vector<std::size_t> random_places(std::size_t count, std::size_t places, TaskRandom& random) {
  std::vector<std::size_t> chosen;
  if (count <= places) {
    chosen = random.permutation(places);
    chosen.resize(count);
  } else {
    while (chosen.size() < count) {
      chosen.push_back(random.below(places));
    }
  }
  std::sort(chosen.begin(), chosen.end());
  return chosen;
}

}  // namespace

Prose::Prose(std::string_view text) {
  bool at_start = true;
  for (std::size_t begin = text.find_first_not_of(kSpace); begin != std::string_view::npos;) {
    const std::size_t end = std::min(text.find_first_of(kSpace, begin), text.size());
    if (at_start) {
      starts_.push_back(words_.size());
    }
    words_.emplace_back(text.substr(begin, end - begin));
    at_start = ends_sentence(words_.back());
    begin = text.find_first_not_of(kSpace, end);
  }
  KVC_CHECK(!words_.empty(), "the text for --tasks has no word");
}

std::size_t Prose::random_start(TaskRandom& random) const {
  return starts_[random.below(starts_.size())];
}

std::vector<std::string> Prose::sentences(std::size_t start, std::size_t count) const {
  std::vector<std::string> result;
  bool begins = true;
  for (std::size_t i = 0; i < count; ++i) {
    const std::string& word = words_[(start + i) % words_.size()];
    if (begins) {
      result.push_back(word);
    } else {
      result.back() += " " + word;
    }
    begins = ends_sentence(word);
  }
  return result;
}

std::vector<std::string> noise_sentences(std::size_t count) {
  std::vector<std::string> result;
  for (std::size_t i = 0; i < count; ++i) {
    result.emplace_back(kNoiseSentences[i % std::size(kNoiseSentences)]);
  }
  return result;
}

HiddenNeedles hide(const std::vector<std::string>& pieces, const std::vector<std::string>& needles,
                   std::string_view separator, TaskRandom& random) {
  const std::vector<std::size_t> places = random_places(needles.size(), pieces.size() + 1, random);
  HiddenNeedles hidden;
  const auto append = [&](const std::string& piece) {
    hidden.text += hidden.text.empty() ? "" : separator;
    hidden.text += piece;
  };
  for (std::size_t i = 0, needle = 0; i <= pieces.size(); ++i) {
    for (; needle < needles.size() && places[needle] == i; ++needle) {
      append(needles[needle]);
      hidden.begins.push_back(hidden.text.size() - needles[needle].size());
    }
    if (i < pieces.size()) {
      append(pieces[i]);
    }
  }
  return hidden;
}

std::vector<double> HiddenNeedles::depths(std::size_t before, const std::string& context) const {
  std::vector<double> depths;
  for (const std::size_t begin : begins) {
    depths.push_back(static_cast<double>(before + begin) / static_cast<double>(context.size()));
  }
  return depths;
}

}  // namespace kvc
