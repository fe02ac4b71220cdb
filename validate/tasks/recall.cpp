#include "validate/tasks/recall.h"

#include <string>
#include <string_view>

#include "core/error.h"
#include "validate/tasks/haystack.h"
#include "validate/tasks/length_fit.h"
#include "validate/tasks/string_match.h"
#include "validate/tasks/task_kinds.h"

namespace kvc {
namespace {

constexpr std::string_view kColours[] = {"red",   "blue", "green", "black", "white",
                                         "brown", "pink", "gray",  "gold",  "tan"};
constexpr std::string_view kThings[] = {"ball", "box",  "hat",  "cup",  "book", "shoe", "kite",
                                        "boat", "drum", "coat", "lamp", "bell", "ring", "rope",
                                        "sock", "toy",  "fork", "bag",  "leaf", "stone"};
constexpr std::size_t kNumThings = std::size(kThings);

constexpr std::size_t kNumQuestions = 8;

struct RecallFact {
  std::string what;    // "red ball"
  std::string number;  // "42"
};

// One of every thing.
std::vector<RecallFact> make_facts(TaskRandom& random) {
  std::vector<RecallFact> facts;
  for (const std::size_t thing : random.permutation(kNumThings)) {
    facts.push_back(
        {fmt::format("{} {}", kColours[random.below(std::size(kColours))], kThings[thing]),
         std::to_string(10 + random.below(90))});
  }
  return facts;
}

// Pieces are encoded one by one, so that a number's ids are known.
class IdList {
 public:
  explicit IdList(const Tokenizer& tokenizer) : tokenizer_(tokenizer) {
    ids_ = tokenizer.with_special_tokens({});
  }
  void add(const std::string& piece) {
    const std::vector<std::int64_t> ids = tokenizer_.encode(piece, false);
    ids_.insert(ids_.end(), ids.begin(), ids.end());
  }
  std::int64_t size() const { return static_cast<std::int64_t>(ids_.size()); }
  std::vector<std::int64_t> take() { return std::move(ids_); }

 private:
  const Tokenizer& tokenizer_;
  std::vector<std::int64_t> ids_;
};

// A list of facts at a random place in prose, and a question for each: the list in another order up to what is asked for,
// with right numbers.
TaskSample recall_sample(const Prose& prose, std::size_t num_words, TaskRandom random) {
  std::vector<RecallFact> facts = make_facts(random);
  facts.resize(kNumQuestions);
  std::string list = "\nRemember:";
  for (const RecallFact& fact : facts) {
    list +=
        fmt::format("{} {} {}", fact.what == facts.front().what ? "" : ",", fact.what, fact.number);
  }
  list += ".\n";
  random.shuffle(facts);
  std::vector<std::string> sentences = prose.sentences(prose.random_start(random), num_words);
  for (std::string& sentence : sentences) {
    sentence += " ";
  }
  const HiddenNeedles hidden = hide(sentences, {list}, "", random);
  TaskSample sample{
      .context = hidden.text, .questions = {}, .depths = hidden.depths(0, hidden.text)};
  std::string question = "\nRecall:";
  for (const RecallFact& fact : facts) {
    question += " " + fact.what;
    sample.questions.push_back({.text = "", .answer_prefix = question, .answers = {fact.number}});
    question += " " + fact.number + ",";
  }
  return sample;
}

}  // namespace

RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::uint64_t seed) {
  TaskRandom random(seed);
  std::vector<RecallFact> facts = make_facts(random);
  IdList ids(tokenizer);
  ids.add("Remember:");
  for (std::size_t i = 0; i < facts.size(); ++i) {
    ids.add(" " + facts[i].what);
    ids.add(" " + facts[i].number);
    ids.add(i + 1 < facts.size() ? "," : ".");
  }
  ids.add("\n");
  RecallPrompt prompt;
  prompt.num_facts_ids = ids.size();
  ids.add("Recall:");
  random.shuffle(facts);
  for (const RecallFact& fact : facts) {
    ids.add(" " + fact.what);
    const std::int64_t first = ids.size();
    ids.add(" " + fact.number);
    prompt.answers.emplace_back(first, ids.size() - first);
    ids.add(",");
  }
  prompt.ids = ids.take();
  return prompt;
}

std::vector<Task> recall_tasks(std::string_view name, const TaskInputs& inputs) {
  const auto make = [prose = inputs.prose](const TaskDraw& draw) {
    return largest_that_fits(draw, {}, [&](std::size_t num_words, TaskRandom random) {
      return recall_sample(*prose, num_words, std::move(random));
    });
  };
  return {{.name = std::string(name),
           .max_new_tokens = 4,
           .make = make,
           .score = leading_words,
           .questions_after = true}};
}

}  // namespace kvc
