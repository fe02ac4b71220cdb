// Needles in a haystack, the eight variants of RULER (arXiv 2404.06654): sentences that give a key a value, hidden in text;
// keys are asked for, values are the answers.
#include <fmt/ranges.h>

#include <algorithm>
#include <array>

#include "core/error.h"
#include "validate/tasks/haystack.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"
#include "validate/tasks/text_words.h"

namespace kvc {
namespace {

enum class Hay { kNoise, kProse, kNeedles };

struct NeedleSettings {
  std::string_view name;
  Hay hay = Hay::kProse;
  bool key_is_uuid = false;                                 // else two words
  bool value_is_uuid = false;                               // else a number of seven digits
  std::size_t num_keys = 1, num_values = 1, num_asked = 1;  // values of each key; keys asked for
};

constexpr NeedleSettings kNeedles[] = {
    {"niah_single_1", Hay::kNoise},
    {"niah_single_2"},
    {.name = "niah_single_3", .value_is_uuid = true},
    {.name = "niah_multikey_1", .num_keys = 4},
    {"niah_multikey_2", Hay::kNeedles},
    {.name = "niah_multikey_3", .hay = Hay::kNeedles, .key_is_uuid = true, .value_is_uuid = true},
    {.name = "niah_multivalue", .num_values = 4},
    {.name = "niah_multiquery", .num_keys = 4, .num_asked = 4},
};

// 8-4-4-4-12 hexadecimal digits, version 4.
std::string uuid(TaskRandom& random) {
  std::string text;
  for (const std::size_t count : {8, 4, 4, 4, 12}) {
    text += text.empty() ? "" : "-";
    for (std::size_t i = 0; i < count; ++i) {
      text += "0123456789abcdef"[random.below(16)];
    }
  }
  text[14] = '4';
  text[19] = "89ab"[random.below(4)];
  return text;
}

class NeedleMaker {
 public:
  NeedleMaker(const NeedleSettings& settings, TaskRandom& random)
      : settings_(settings), random_(random), words_(TaskRandom(random.below(1u << 30))) {}

  std::string key() {
    if (settings_.key_is_uuid) {
      return uuid(random_);
    }
    const std::string first = words_.next();
    return first + "-" + words_.next();
  }
  std::string value() { return settings_.value_is_uuid ? uuid(random_) : random_.digits(7); }
  std::string noun() const { return settings_.value_is_uuid ? "code" : "number"; }
  std::string needle(const std::string& key, const std::string& value) const {
    return fmt::format("The secret {} of {} is: {}.", noun(), key, value);
  }

 private:
  const NeedleSettings& settings_;
  TaskRandom& random_;
  WordSupply words_;
};

// "a", "a and b", "a, b and c"
std::string listed(const std::vector<std::string>& names) {
  const std::vector<std::string> all_but_last(names.begin(), names.end() - 1);
  return all_but_last.empty()
             ? names.back()
             : fmt::format("{} and {}", fmt::join(all_but_last, ", "), names.back());
}

TaskQuestion needle_question(const std::vector<std::string>& asked, const std::string& noun,
                             std::vector<std::string> values) {
  const bool several = values.size() > 1;
  const std::string what =
      fmt::format("secret {}{} of {}", noun, several ? "s" : "", listed(asked));
  const char* be = several ? "are" : "is";
  return {.text = fmt::format("What {} the {} in the text?", be, what),
          .answer_prefix = fmt::format(" The {} {}:", what, be),
          .answers = std::move(values)};
}

std::string needle_introduction(const std::string& noun, bool several) {
  return several ? fmt::format(
                       "Secret {}s are hidden in the text below. Keep them in mind: you "
                       "will be asked for some of them.\n",
                       noun)
                 : fmt::format(
                       "A secret {} is hidden in the text below. Keep it in mind: you will "
                       "be asked for it.\n",
                       noun);
}

// `size`: sentences of noise, words of prose, or needles that are not asked for.
TaskSample needle_sample(const NeedleSettings& settings, const Prose& prose, std::size_t size,
                         TaskRandom random) {
  NeedleMaker make(settings, random);
  std::vector<std::string> keys, needles, values;
  for (std::size_t i = 0; i < settings.num_keys; ++i) {
    keys.push_back(make.key());
    for (std::size_t j = 0; j < settings.num_values; ++j) {
      const std::string value = make.value();
      needles.push_back(make.needle(keys.back(), value));
      if (i < settings.num_asked) {
        values.push_back(value);
      }
    }
  }
  std::vector<std::size_t> order = random.permutation(needles.size());
  const std::size_t start = prose.random_start(random);
  TaskRandom places(random.below(1u << 30));
  std::vector<std::string> hay;
  if (settings.hay == Hay::kNeedles) {
    for (std::size_t i = 0; i < size; ++i) {
      const std::string key = make.key();
      hay.push_back(make.needle(key, make.value()));
    }
  } else {
    hay = settings.hay == Hay::kNoise ? noise_sentences(size) : prose.sentences(start, size);
  }
  std::vector<std::string> shuffled;
  for (const std::size_t i : order) {
    shuffled.push_back(needles[i]);
  }
  const HiddenNeedles hidden =
      hide(hay, shuffled, settings.hay == Hay::kProse ? " " : "\n", places);
  const std::size_t num_answers = values.size();
  const std::vector<std::string> asked(
      keys.begin(), keys.begin() + static_cast<std::ptrdiff_t>(settings.num_asked));
  TaskSample sample;
  const bool several = needles.size() > 1 || settings.hay == Hay::kNeedles;
  const std::string introduction = needle_introduction(make.noun(), several);
  sample.context = introduction + hidden.text + "\n";
  sample.questions = {needle_question(asked, make.noun(), std::move(values))};
  const std::vector<double> depths = hidden.depths(introduction.size(), sample.context);
  sample.depths.resize(num_answers);  // needles of keys that are asked for come first
  for (std::size_t i = 0; i < order.size(); ++i) {
    if (order[i] < num_answers) {
      sample.depths[order[i]] = depths[i];
    }
  }
  return sample;
}

}  // namespace

std::vector<Task> niah_tasks(std::string_view name, const TaskInputs& inputs) {
  const NeedleSettings& settings =
      *std::find_if(std::begin(kNeedles), std::end(kNeedles),
                    [&](const NeedleSettings& row) { return row.name == name; });
  const auto make = [&settings, prose = inputs.prose](const TaskDraw& draw) {
    return largest_that_fits(draw, {}, [&](std::size_t size, TaskRandom random) {
      return needle_sample(settings, *prose, size, std::move(random));
    });
  };
  return {{.name = std::string(name), .max_new_tokens = 128, .make = make, .score = match_all}};
}

}  // namespace kvc
