#include "validate/greedy_answers.h"

#include <algorithm>

#include "core/interrupt.h"
#include "runtime/sampler.h"
#include "runtime/text_stream.h"

namespace kvc {
namespace {

using Sequences = std::vector<Sequence>;

std::vector<Sequence*> addresses(Sequences& sequences) {
  std::vector<Sequence*> result;
  for (Sequence& sequence : sequences) {
    result.push_back(&sequence);
  }
  return result;
}

// One question that a model answers.
struct OpenAnswer {
  Continuation continuation;
  std::int64_t num_tokens = 0;
};

class AnswerBatch {
 public:
  AnswerBatch(const Engine& engine, const PromptFormat& format, const Task& task,
              const std::vector<std::int64_t>& stop_ids)
      : engine_(engine), format_(format), task_(task), stop_ids_(stop_ids) {}

  void read(const std::vector<TaskSample>& samples, bool questions_after) {
    Engine::Ids contexts, questions;
    std::vector<std::size_t> forks;  // per context
    for (const TaskSample& sample : samples) {
      for (const TaskQuestion& question : sample.questions) {
        TaskPrompt prompt = encode_prompt(format_, sample, question, questions_after);
        std::vector<std::int64_t> whole = prompt.context;
        whole.insert(whole.end(), prompt.question.begin(), prompt.question.end());
        open_.push_back({Continuation(format_.tokenizer, whole, {})});
        if (!questions_after || &question == &sample.questions.front()) {
          contexts.push_back(std::move(prompt.context));
          forks.push_back(questions_after ? sample.questions.size() : 1);
        }
        questions.push_back(std::move(prompt.question));
      }
    }
    logits_ = prefill(contexts, forks);
    if (questions_after) {
      logits_ = engine_.extend(addresses(sequences_), questions, Engine::Rows::kLast,
                               stop_if_interrupted);
    }
  }

  // Outputs in the order of the questions.
  std::vector<std::string> answer() {
    std::vector<std::size_t> active(sequences_.size());
    for (std::size_t i = 0; i < active.size(); ++i) {
      active[i] = i;
    }
    for (;;) {
      check_interrupt();
      Engine::Ids tokens;
      std::vector<Sequence*> going;
      std::vector<std::size_t> rest;
      for (std::size_t i = 0; i < active.size(); ++i) {
        const std::int64_t token = Sampler({}, 0).next(logits_[i][0]);
        if (take(open_[active[i]], token)) {
          tokens.push_back({token});
          going.push_back(&sequences_[active[i]]);
          rest.push_back(active[i]);
        }
      }
      if (rest.empty()) {
        break;
      }
      logits_ = engine_.extend(going, tokens, Engine::Rows::kLast, stop_if_interrupted);
      active = std::move(rest);
    }
    std::vector<std::string> outputs;
    for (OpenAnswer& open : open_) {
      open.continuation.finish();
      outputs.push_back(open.continuation.text());
    }
    return outputs;
  }

 private:
  // One sequence for every question: context i's and forks[i] - 1 copies.
  std::vector<at::Tensor> prefill(const Engine::Ids& contexts,
                                  const std::vector<std::size_t>& forks) {
    Sequences read;
    for (std::size_t i = 0; i < contexts.size(); ++i) {
      read.push_back(engine_.new_sequence());
    }
    std::vector<at::Tensor> logits =
        engine_.prefill(addresses(read), contexts, Engine::Rows::kLast, stop_if_interrupted);
    for (std::size_t i = 0; i < read.size(); ++i) {
      for (std::size_t copy = 1; copy < forks[i]; ++copy) {
        sequences_.push_back(read[i].fork());
      }
      sequences_.push_back(std::move(read[i]));
    }
    return logits;
  }

  // Whether the answer goes on after `token`.
  bool take(OpenAnswer& open, std::int64_t token) const {
    if (std::find(stop_ids_.begin(), stop_ids_.end(), token) != stop_ids_.end()) {
      return false;
    }
    open.continuation.push(token);
    return ++open.num_tokens < task_.max_new_tokens;
  }

  const Engine& engine_;
  const PromptFormat& format_;
  const Task& task_;
  const std::vector<std::int64_t>& stop_ids_;
  Sequences sequences_;
  std::vector<OpenAnswer> open_;  // of sequences_
  std::vector<at::Tensor> logits_;
};

}  // namespace

std::vector<std::vector<std::string>> greedy_answers(const Engine& engine,
                                                     const PromptFormat& format, const Task& task,
                                                     const std::vector<TaskSample>& samples,
                                                     const std::vector<std::int64_t>& stop_ids,
                                                     bool questions_after) {
  AnswerBatch batch(engine, format, task, stop_ids);
  batch.read(samples, questions_after || task.questions_after);
  const std::vector<std::string> outputs = batch.answer();
  std::vector<std::vector<std::string>> by_sample;
  auto next = outputs.begin();
  for (const TaskSample& sample : samples) {
    const auto end = next + static_cast<std::ptrdiff_t>(sample.questions.size());
    by_sample.emplace_back(next, end);
    next = end;
  }
  return by_sample;
}

}  // namespace kvc
