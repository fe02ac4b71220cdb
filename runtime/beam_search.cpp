#include "runtime/beam_search.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/elapsed.h"
#include "core/error.h"
#include "runtime/read_prompts.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

// A beam with one more token.
struct Continued {
  std::size_t beam = 0;
  std::int64_t token = 0;
  float score = 0;  // sum of the logarithms of all tokens' probabilities
};

struct Finished {
  std::vector<std::int64_t> tokens;  // without an end token
  float score = 0;                   // per token
};

struct Beam {
  Sequence sequence;
  std::vector<std::int64_t> tokens;
  float score = 0;
};

class BeamSearch {
 public:
  BeamSearch(const Engine& engine, const GenerateOptions& options, Sequence prompt)
      : engine_(engine), options_(options) {
    beams_.push_back({std::move(prompt), {}, 0});
  }

  // logits: [1, vocab_size] after the prompt. The best first.
  std::vector<Finished> run(const at::Tensor& logits, GenerateResult& result) {
    std::vector<at::Tensor> rows = {logits};
    while (advance(rows)) {
      if (options_.stopped && options_.stopped()) {
        result.interrupted = true;
        break;
      }
      rows = step();
      result.timing.decode_tokens += static_cast<std::int64_t>(beams_.size());
    }
    if (result.interrupted) {
      for (const Beam& beam : beams_) {
        finish(beam.tokens, beam.score, beam.tokens.size());
      }
    }
    return std::move(finished_);
  }

  const Sequence& best_running() const { return beams_.front().sequence; }

 private:
  std::size_t num_beams() const { return static_cast<std::size_t>(options_.num_beams); }

  // The most probable continuations of all beams, enough of them that num_beams() do not end.
  std::vector<Continued> continuations(const std::vector<at::Tensor>& rows) const {
    std::vector<at::Tensor> scores;
    for (std::size_t i = 0; i < beams_.size(); ++i) {
      scores.push_back(rows[i].log_softmax(-1) + beams_[i].score);
    }
    const at::Tensor all = at::cat(scores).flatten();
    const auto count = static_cast<std::int64_t>(
        std::max<std::size_t>(2, 1 + options_.stop_ids.size()) * num_beams());
    const auto [best, indices] = all.topk(std::min(count, all.numel()));
    const std::int64_t vocab_size = rows.front().size(-1);
    std::vector<Continued> continued;
    for (std::int64_t i = 0; i < best.numel(); ++i) {
      const auto index = indices[i].item<std::int64_t>();
      continued.push_back({static_cast<std::size_t>(index / vocab_size), index % vocab_size,
                           best[i].item<float>()});
    }
    return continued;
  }

  bool is_end(std::int64_t token) const {
    return std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) !=
           options_.stop_ids.end();
  }

  // Keeps the num_beams() best.
  void finish(std::vector<std::int64_t> tokens, float score, std::size_t num_scored) {
    if (num_scored == 0) {
      return;
    }
    const Finished finished{std::move(tokens), score / static_cast<float>(num_scored)};
    const auto place = std::find_if(finished_.begin(), finished_.end(), [&](const Finished& other) {
      return other.score < finished.score;
    });
    finished_.insert(place, finished);
    finished_.resize(std::min(finished_.size(), num_beams()));
  }

  // Chooses the next beams and what ends; false where nothing can become better.
  bool advance(const std::vector<at::Tensor>& rows) {
    const std::size_t length = beams_.front().tokens.size() + 1;
    const bool is_last = length == static_cast<std::size_t>(options_.max_new_tokens);
    std::vector<Continued> running;
    const std::vector<Continued> continued = continuations(rows);
    for (std::size_t rank = 0; rank < continued.size(); ++rank) {
      const Continued& candidate = continued[rank];
      const bool ends = is_end(candidate.token);
      if (!ends && !is_last) {
        if (running.size() < num_beams()) {
          running.push_back(candidate);
        }
      } else if (rank < num_beams()) {
        std::vector<std::int64_t> tokens = beams_[candidate.beam].tokens;
        if (!ends) {
          tokens.push_back(candidate.token);
        }
        finish(std::move(tokens), candidate.score, length);
      }
    }
    if (running.empty()) {
      return false;
    }
    take(running);
    return finished_.size() < num_beams() ||
           beams_.front().score / static_cast<float>(length) > finished_.back().score;
  }

  // Beams fork where several continue one.
  void take(const std::vector<Continued>& running) {
    std::vector<Beam> next;
    for (const Continued& candidate : running) {
      const Beam& parent = beams_[candidate.beam];
      next.push_back({parent.sequence.fork(), parent.tokens, candidate.score});
      next.back().tokens.push_back(candidate.token);
    }
    beams_ = std::move(next);
  }

  std::vector<at::Tensor> step() {
    std::vector<Sequence*> sequences;
    Engine::Ids ids;
    for (Beam& beam : beams_) {
      sequences.push_back(&beam.sequence);
      ids.push_back({beam.tokens.back()});
    }
    return engine_.extend(sequences, ids, Engine::Rows::kLast);
  }

  const Engine& engine_;
  const GenerateOptions& options_;
  std::vector<Beam> beams_;  // the best first
  std::vector<Finished> finished_;
};

PartTimes part_times(const Engine& engine) {
  return engine.part_times() == nullptr ? PartTimes{} : *engine.part_times();
}

// The results of one prompt.
void search(const Engine& engine, const GenerateOptions& options, Sequence prompt,
            const at::Tensor& logits, std::size_t index, GenerateResult& result) {
  const auto samples = static_cast<std::size_t>(options.num_samples);
  Generated* generated = &result.sequences[index * samples];
  if (options.all_logits) {
    generated->prompt_logits = logits;
  }
  BeamSearch beams(engine, options, std::move(prompt));
  std::vector<Finished> finished;
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

GenerateResult search_beams(const Engine& engine, const Engine::Ids& prompts,
                            const GenerateOptions& options) {
  KVC_CHECK(options.num_samples <= options.num_beams, "{} samples of {} beams; search more beams",
            options.num_samples, options.num_beams);
  GenerateResult result;
  result.sequences.resize(prompts.size() * static_cast<std::size_t>(options.num_samples));
  std::vector<Sequence> sequences;
  for (const std::vector<std::int64_t>& prompt : prompts) {
    sequences.push_back(engine.new_sequence());
    result.timing.prefill_tokens += static_cast<std::int64_t>(prompt.size());
  }
  const auto start = Clock::now();
  const PartTimes before = part_times(engine);
  std::vector<at::Tensor> logits;
  try {
    logits = read_prompts(engine, prompts, options, sequences);
  } catch (const Interrupted&) {
    result.interrupted = true;
  }
  result.timing.prefill_seconds = seconds_since(start);
  const PartTimes between = part_times(engine);
  result.timing.prefill_parts = between.since(before);
  const auto decode_start = Clock::now();
  for (std::size_t i = 0; i < logits.size(); ++i) {
    search(engine, options, std::move(sequences[i]), logits[i], i, result);
  }
  result.timing.decode_seconds = seconds_since(decode_start);
  result.timing.decode_parts = part_times(engine).since(between);
  return result;
}

}  // namespace kvc
