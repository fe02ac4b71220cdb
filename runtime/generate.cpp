#include "runtime/generate.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/progress.h"
#include "runtime/beam_search.h"

namespace kvc {
namespace {

class Generation {
 public:
  Generation(const Engine& engine, const Engine::Ids& prompts, const GenerateOptions& options,
             const TokenVisitor& visit)
      : engine_(engine), prompts_(prompts), options_(options), visit_(visit) {
    for (std::size_t i = 0; i < prompts.size(); ++i) {
      sequences_.push_back(engine.new_sequence());
      result_.timing.prefill_tokens += static_cast<std::int64_t>(prompts[i].size());
    }
  }

  GenerateResult run() {
    const RebuildCounts rebuilt = engine_.rebuild_counts();
    result_.sequences.resize(sequences_.size() * static_cast<std::size_t>(options_.num_samples));
    std::vector<std::size_t> active;
    const auto read = [&] {
      const std::vector<at::Tensor> logits =
          fork_samples(read_prompts(engine_, prompts_, options_, sequences_));
      active = take_tokens(all_indices(), logits);
    };
    const auto write = [&] {
      while (!active.empty() && !stopped()) {
        active = take_tokens(active, step(active));
      }
    };
    run_timed(engine_, read, write, result_);
    result_.timing.rebuilt = engine_.rebuild_counts().since(rebuilt);
    for (std::size_t i = 0; i < sequences_.size(); ++i) {
      result_.sequences[i].num_tokens = sequences_[i].num_tokens();
      result_.sequences[i].bytes = sequences_[i].cache().bytes();
      result_.sequences[i].reuse = sequences_[i].reuse();
    }
    return std::move(result_);
  }

 private:
  bool stopped() {
    result_.interrupted = options_.stopped && options_.stopped();
    return result_.interrupted;
  }

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

  // Makes the samples of every prompt: last rows of logits per sequence.
  std::vector<at::Tensor> fork_samples(std::vector<at::Tensor> of_prompts) {
    const auto samples = static_cast<std::size_t>(options_.num_samples);
    std::vector<Sequence> sequences;
    std::vector<at::Tensor> logits;
    for (std::size_t prompt = 0; prompt < prompts_.size(); ++prompt) {
      const at::Tensor& rows = of_prompts[prompt];
      if (options_.all_logits) {
        result_.sequences[prompt * samples].prompt_logits = rows;
      }
      for (std::size_t sample = 0; sample < samples; ++sample) {
        samplers_.emplace_back(options_.sampling, options_.seed + sequences.size(),
                               prompts_[prompt]);
        logits.push_back(rows.narrow(0, rows.size(0) - 1, 1));
        sequences.push_back(sample + 1 < samples ? sequences_[prompt].fork()
                                                 : std::move(sequences_[prompt]));
      }
    }
    sequences_ = std::move(sequences);
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
      const std::int64_t token = sample(active[i], logits[i][0]);
      const auto& stops = options_.stop_ids;
      if (std::find(stops.begin(), stops.end(), token) != stops.end()) {
        continue;
      }
      auto& tokens = result_.sequences[active[i]].tokens;
      tokens.push_back(token);
      const bool goes_on = !visit_ || visit_(active[i], token);
      if (goes_on && static_cast<std::int64_t>(tokens.size()) < options_.max_new_tokens) {
        remaining.push_back(active[i]);
      }
    }
    return remaining;
  }

  std::int64_t sample(std::size_t sequence, const at::Tensor& logits) {
    const PartScope scope(engine_.part_times(), Part::kSampling);
    return samplers_[sequence].next(logits);
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

void run_timed(const Engine& engine, const std::function<void()>& read,
               const std::function<void()>& write, GenerateResult& result) {
  using Clock = std::chrono::steady_clock;
  const auto parts = [&] {
    return engine.part_times() == nullptr ? PartTimes{} : *engine.part_times();
  };
  const auto start = Clock::now();
  const PartTimes before = parts();
  try {
    read();
  } catch (const Interrupted&) {
    result.interrupted = true;
  }
  result.timing.prefill_seconds = seconds_since(start);
  const PartTimes between = parts();
  result.timing.prefill_parts = between.since(before);
  const auto decode_start = Clock::now();
  write();
  result.timing.decode_seconds = seconds_since(decode_start);
  result.timing.decode_parts = parts().since(between);
}

std::vector<at::Tensor> read_prompts(const Engine& engine, const Engine::Ids& prompts,
                                     const GenerateOptions& options,
                                     std::vector<Sequence>& sequences) {
  const auto rows = options.all_logits ? Engine::Rows::kAll : Engine::Rows::kLast;
  Engine::Ids heads, tails;
  std::vector<Sequence*> all, with_tail;
  std::vector<std::size_t> tail_indices;
  for (std::size_t i = 0; i < prompts.size(); ++i) {
    const auto& prompt = prompts[i];
    const auto length = static_cast<std::ptrdiff_t>(prompt.size());
    const std::ptrdiff_t head = options.prefill_tokens == 0
                                    ? length
                                    : std::min<std::ptrdiff_t>(length, options.prefill_tokens);
    all.push_back(&sequences[i]);
    heads.emplace_back(prompt.begin(), prompt.begin() + head);
    if (head < length) {
      with_tail.push_back(&sequences[i]);
      tails.emplace_back(prompt.begin() + head, prompt.end());
      tail_indices.push_back(i);
    }
  }
  std::vector<at::Tensor> logits = engine.prefill(all, heads, rows, options.stopped);
  if (!with_tail.empty()) {
    const auto more = engine.extend(with_tail, tails, rows, options.stopped);
    for (std::size_t i = 0; i < tail_indices.size(); ++i) {
      at::Tensor& row = logits[tail_indices[i]];
      row = options.all_logits ? at::cat({row, more[i]}) : more[i];
    }
  }
  if (options.prompts_read) {
    options.prompts_read();
  }
  return logits;
}

GenerateResult generate(const Engine& engine, const Engine::Ids& prompts,
                        const GenerateOptions& options, const TokenVisitor& visit) {
  return options.num_beams > 1 ? search_beams(engine, prompts, options)
                               : Generation(engine, prompts, options, visit).run();
}

}  // namespace kvc
