#include "runtime/beam_search.h"

#include <algorithm>
#include <utility>

#include "core/error.h"
#include "core/progress.h"
#include "runtime/attention/prompt_reader.h"

namespace kvc {
namespace {

class BeamSearch {
 public:
  BeamSearch(const Engine& engine, const GenerateOptions& options, Sequence prompt)
      : engine_(engine), options_(options), choice_(beam_options(options)) {
    sequences_.push_back(std::move(prompt));
  }

  // logits: [1, vocab_size] after the prompt. The best first.
  std::vector<FinishedBeam> run(const at::Tensor& logits, GenerateResult& result) {
    std::vector<at::Tensor> rows = {logits};
    while (advance(rows)) {
      if (options_.stopped && options_.stopped()) {
        result.interrupted = true;
        break;
      }
      rows = step();
      result.timing.decode_tokens += static_cast<std::int64_t>(sequences_.size());
    }
    return choice_.finished(result.interrupted);
  }

  const Sequence& best_running() const { return sequences_.front(); }

 private:
  // Beams fork where several continue one.
  bool advance(const std::vector<at::Tensor>& rows) {
    const bool goes_on = choice_.advance(rows);
    std::vector<Sequence> next;
    for (const RunningBeam& beam : choice_.beams()) {
      next.push_back(sequences_[beam.parent].fork());
    }
    sequences_ = std::move(next);
    return goes_on;
  }

  std::vector<at::Tensor> step() {
    std::vector<Sequence*> sequences;
    Engine::Ids ids;
    for (std::size_t beam = 0; beam < sequences_.size(); ++beam) {
      sequences.push_back(&sequences_[beam]);
      ids.push_back({choice_.beams()[beam].tokens.back()});
    }
    return engine_.extend(sequences, ids, Engine::Rows::kLast);
  }

  const Engine& engine_;
  const GenerateOptions& options_;
  BeamChoice choice_;
  std::vector<Sequence> sequences_;  // of the running beams
};

// The results of one prompt.
void search(const Engine& engine, const GenerateOptions& options, Sequence prompt,
            const at::Tensor& logits, std::size_t index, GenerateResult& result) {
  const auto samples = static_cast<std::size_t>(options.num_samples);
  Generated* generated = &result.sequences[index * samples];
  if (options.all_logits) {
    generated->prompt_logits = logits;
  }
  BeamSearch beams(engine, options, std::move(prompt));
  std::vector<FinishedBeam> finished;
  if (options.max_new_tokens > 0 && !result.interrupted) {
    finished = beams.run(logits.narrow(0, logits.size(0) - 1, 1), result);
  }
  for (std::size_t sample = 0; sample < samples; ++sample) {
    if (sample < finished.size()) {
      generated[sample].tokens = std::move(finished[sample].tokens);
    }
    generated[sample].num_tokens = beams.best_running().num_tokens();
    generated[sample].bytes = beams.best_running().cache().bytes();
    generated[sample].reuse = beams.best_running().reuse();
  }
}

}  // namespace

BeamOptions beam_options(const GenerateOptions& options) {
  KVC_CHECK(options.num_samples <= options.num_beams, "{} samples of {} beams; search more beams",
            options.num_samples, options.num_beams);
  return {static_cast<std::size_t>(options.num_beams), options.max_new_tokens, options.stop_ids};
}

GenerateResult search_beams(const Engine& engine, const Engine::Ids& prompts,
                            const GenerateOptions& options) {
  (void)beam_options(options);  // before anything is read
  GenerateResult result;
  result.sequences.resize(prompts.size() * static_cast<std::size_t>(options.num_samples));
  std::vector<Sequence> sequences;
  for (const std::vector<std::int64_t>& prompt : prompts) {
    sequences.push_back(engine.new_sequence());
    result.timing.prefill_tokens += static_cast<std::int64_t>(prompt.size());
  }
  std::vector<at::Tensor> logits;
  const auto read = [&] { logits = read_prompts(engine, prompts, options, sequences); };
  const auto write = [&] {
    for (std::size_t i = 1; i < logits.size(); ++i) {
      engine.free_rebuilt(sequences[i]);  // the room is the first prompt's until its beams are done
    }
    for (std::size_t i = 0; i < logits.size(); ++i) {
      search(engine, options, std::move(sequences[i]), logits[i], i, result);
    }
  };
  run_timed(engine, read, write, result);
  return result;
}

}  // namespace kvc
