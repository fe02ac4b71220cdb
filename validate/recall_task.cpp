#include "validate/recall_task.h"

#include <fmt/format.h>

#include <random>
#include <string>
#include <string_view>
#include <utility>

#include "core/error.h"
#include "core/process.h"

namespace kvc {
namespace {

constexpr std::string_view kColours[] = {"red",   "blue", "green", "black", "white",
                                         "brown", "pink", "gray",  "gold",  "tan"};
constexpr std::string_view kThings[] = {"ball", "box",  "hat",  "cup",  "book", "shoe", "kite",
                                        "boat", "drum", "coat", "lamp", "bell", "ring", "rope",
                                        "sock", "toy",  "fork", "bag",  "leaf", "stone"};
constexpr std::size_t kNumThings = std::size(kThings);

using Random = std::mt19937_64;

std::size_t below(Random& random, std::size_t count) { return random() % count; }

template <typename Value>
void shuffle(std::vector<Value>& values, Random& random) {
  for (std::size_t i = values.size(); i > 1; --i) {
    std::swap(values[i - 1], values[below(random, i)]);
  }
}

struct Fact {
  std::string what;    // "red ball"
  std::string number;  // "42"
};

std::vector<Fact> make_facts(Random& random) {
  std::vector<std::size_t> things(kNumThings);
  for (std::size_t i = 0; i < kNumThings; ++i) {
    things[i] = i;
  }
  shuffle(things, random);
  std::vector<Fact> facts;
  for (const std::size_t thing : things) {
    facts.push_back(
        {fmt::format("{} {}", kColours[below(random, std::size(kColours))], kThings[thing]),
         std::to_string(10 + below(random, 90))});
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

// Logits that predict the ids after the facts. [ids - num_facts_ids, vocab_size]
at::Tensor question_logits(Engine& engine, const RecallPrompt& prompt) {
  const auto middle = prompt.ids.begin() + prompt.num_facts_ids;
  Sequence sequence = engine.new_sequence();
  check_interrupt();
  const at::Tensor first =
      engine.prefill({&sequence}, {{prompt.ids.begin(), middle}}, Engine::Rows::kLast).front();
  const at::Tensor rest =
      engine.extend({&sequence}, {{middle, prompt.ids.end()}}, Engine::Rows::kAll).front();
  return at::cat({first, rest.narrow(0, 0, rest.size(0) - 1)});
}

std::int64_t count_right(Engine& engine, const RecallPrompt& prompt) {
  const at::Tensor top = question_logits(engine, prompt).argmax(1).contiguous();
  const std::int64_t* guesses = top.const_data_ptr<std::int64_t>();
  std::int64_t right = 0;
  for (const auto& [first, count] : prompt.answers) {
    bool equal = true;
    for (std::int64_t i = first; i < first + count; ++i) {
      equal = equal && guesses[i - prompt.num_facts_ids] == prompt.ids[static_cast<std::size_t>(i)];
    }
    right += equal ? 1 : 0;
  }
  return right;
}

}  // namespace

RecallPrompt make_recall_prompt(const Tokenizer& tokenizer, std::uint64_t seed) {
  Random random(seed);
  std::vector<Fact> facts = make_facts(random);
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
  shuffle(facts, random);
  for (const Fact& fact : facts) {
    ids.add(" " + fact.what);
    const std::int64_t first = ids.size();
    ids.add(" " + fact.number);
    prompt.answers.emplace_back(first, ids.size() - first);
    ids.add(",");
  }
  prompt.ids = ids.take();
  return prompt;
}

Recall compare_recall(Engine& reference, Engine& candidate, const Tokenizer& tokenizer,
                      std::int64_t num_prompts, std::uint64_t seed) {
  Recall recall;
  for (std::int64_t i = 0; i < num_prompts; ++i) {
    const RecallPrompt prompt =
        make_recall_prompt(tokenizer, seed * 1'000'003 + static_cast<std::uint64_t>(i));
    const auto length = static_cast<std::int64_t>(prompt.ids.size());
    KVC_CHECK(length <= reference.config().max_position_embeddings,
              "the recall task takes {} tokens, the model's context is {}", length,
              reference.config().max_position_embeddings);
    recall.num_asked += static_cast<std::int64_t>(prompt.answers.size());
    recall.reference_right += count_right(reference, prompt);
    recall.candidate_right += count_right(candidate, prompt);
  }
  return recall;
}

}  // namespace kvc
