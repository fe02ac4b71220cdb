#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/interrupt.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

class Generation {
 public:
  Generation(const Engine& engine, const Engine::Ids& prompts, const GenerateOptions& options,
             const TokenVisitor& visit)
      : engine_(engine), prompts_(prompts), options_(options), visit_(visit) {
    result_.sequences.resize(prompts.size());
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      sequences_.push_back(engine.new_sequence());
      samplers_.emplace_back(options.sampling, options.seed + i);
    }
  }

  GenerateResult run() {
    const auto start = Clock::now();
    std::vector<at::Tensor> logits = read_prompts();
    std::vector<std::size_t> active = take_tokens(all_indices(), logits);
    result_.timing.prefill_seconds = seconds_since(start);
    const auto decode_start = Clock::now();
    while (!active.empty()) {
      check_interrupt();
      active = take_tokens(active, step(active));
    }
    result_.timing.decode_seconds = seconds_since(decode_start);
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      result_.sequences[i].num_tokens = sequences_[i].num_tokens();
      result_.sequences[i].bytes = sequences_[i].cache().bytes();
    }
    return std::move(result_);
  }

 private:
  std::vector<std::size_t> all_indices() const {
    std::vector<std::size_t> indices(sequences_.size());
    for (std::size_t i = 0; i < indices.size(); ++i) {
      indices[i] = i;
    }
    return indices;
  }

  std::vector<Sequence*> pointers(const std::vector<std::size_t>& indices) {
    std::vector<Sequence*> pointers;
    for (const std::size_t i : indices) {
      pointers.push_back(&sequences_[i]);
    }
    return pointers;
  }

  // Last row of logits per sequence.
  std::vector<at::Tensor> read_prompts() {
    const auto rows = options_.all_logits ? Engine::Rows::kAll : Engine::Rows::kLast;
    Engine::Ids heads, tails;
    std::vector<std::size_t> with_tail;
    for (std::size_t i = 0; i < prompts_.size(); ++i) {
      const auto& prompt = prompts_[i];
      const auto length = static_cast<std::ptrdiff_t>(prompt.size());
      const std::ptrdiff_t head = options_.prefill_tokens == 0
                                      ? length
                                      : std::min<std::ptrdiff_t>(length, options_.prefill_tokens);
      heads.emplace_back(prompt.begin(), prompt.begin() + head);
      if (head < length) {
        tails.emplace_back(prompt.begin() + head, prompt.end());
        with_tail.push_back(i);
      }
      result_.timing.prefill_tokens += length;
    }
    std::vector<at::Tensor> logits = engine_.prefill(pointers(all_indices()), heads, rows);
    if (!with_tail.empty()) {
      const auto more = engine_.extend(pointers(with_tail), tails, rows);
      for (std::size_t i = 0; i < with_tail.size(); ++i) {
        at::Tensor& row = logits[with_tail[i]];
        row = options_.all_logits ? at::cat({row, more[i]}) : more[i];
      }
    }
    if (options_.all_logits) {
      for (std::size_t i = 0; i < logits.size(); ++i) {
        result_.sequences[i].prompt_logits = logits[i];
        logits[i] = logits[i].narrow(0, logits[i].size(0) - 1, 1);
      }
    }
    return logits;
  }

  // Feeds every active sequence's newest token.
  std::vector<at::Tensor> step(const std::vector<std::size_t>& active) {
    Engine::Ids ids;
    for (const std::size_t i : active) {
      ids.push_back({result_.sequences[i].tokens.back()});
    }
    result_.timing.decode_tokens += static_cast<std::int64_t>(active.size());
    return engine_.extend(pointers(active), ids, Engine::Rows::kLast);
  }

  // Samples a token for every active sequence; returns those that go on.
  std::vector<std::size_t> take_tokens(const std::vector<std::size_t>& active,
                                       const std::vector<at::Tensor>& logits) {
    std::vector<std::size_t> remaining;
    for (std::size_t i = 0; i < active.size() && options_.max_new_tokens > 0; ++i) {
      const std::int64_t token = samplers_[active[i]].next(logits[i][0]);
      const auto& stops = options_.stop_ids;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
        continue;
      }
      auto& tokens = result_.sequences[active[i]].tokens;
      tokens.push_back(token);
      if (visit_) {
        visit_(active[i], token);
      }
      if (static_cast<std::int64_t>(tokens.size()) < options_.max_new_tokens) {
        remaining.push_back(active[i]);
      }
    }
    return remaining;
  }

  const Engine& engine_;
  const Engine::Ids& prompts_;
  const GenerateOptions& options_;
  const TokenVisitor& visit_;
  std::vector<Sequence> sequences_;
  std::vector<Sampler> samplers_;
  GenerateResult result_;
};

}  // namespace

GenerateResult generate(const Engine& engine, const Engine::Ids& prompts,
                        const GenerateOptions& options, const TokenVisitor& visit) {
  return Generation(engine, prompts, options, visit).run();
}

}  // namespace kvc
