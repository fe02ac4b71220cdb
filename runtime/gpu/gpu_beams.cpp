#include "runtime/gpu/gpu_batch.h"

#include <algorithm>
#include <chrono>
#include <utility>
#include <vector>

#include "core/progress.h"
#include "runtime/beam_search.h"

namespace kvc {
namespace {

using Clock = std::chrono::steady_clock;

class GpuBeamSearch {
 public:
  GpuBeamSearch(GpuBatch& batch, const GenerateOptions& options, GenerateResult& result)
      : batch_(batch), options_(options), result_(result), choice_(beam_options(options)) {}

  void read_prompt(std::int64_t chunk) {
    batch_.read_prompts(chunk, options_.num_beams);
    if (options_.prompts_read) {
      options_.prompts_read();
    }
    while (batch_.done() < batch_.rest()) {
      if (options_.stopped && options_.stopped()) {
        throw Interrupted();
      }
      batch_.queue_step();
      batch_.wait_step();
    }
  }

  // The best first.
  std::vector<FinishedBeam> run() {
    while (advance()) {
      if (options_.stopped && options_.stopped()) {
        result_.interrupted = true;
        break;
      }
      feed();
      batch_.queue_step();
      batch_.wait_step();
      result_.timing.decode_tokens += static_cast<std::int64_t>(places_.size());
    }
    return choice_.finished(result_.interrupted);
  }

  std::size_t best_running() const { return places_.front(); }

 private:
  // A beam's first continuation takes its place, others take those of beams that nothing continues.
  bool advance() {
    const at::Tensor logits = batch_.state().logits.cpu();
    std::vector<at::Tensor> rows;
    for (const std::size_t place : places_) {
      rows.push_back(logits.narrow(0, static_cast<std::int64_t>(place), 1));
    }
    const bool goes_on = choice_.advance(rows);
    const std::vector<RunningBeam>& beams = choice_.beams();
    std::vector<bool> taken(static_cast<std::size_t>(options_.num_beams), false);
    for (const RunningBeam& beam : beams) {
      taken[places_[beam.parent]] = true;
    }
    std::vector<bool> continued(places_.size(), false);
    std::vector<std::size_t> next;
    for (const RunningBeam& beam : beams) {
      std::size_t place = places_[beam.parent];
      if (continued[beam.parent]) {
        const auto free = std::find(taken.begin(), taken.end(), false);
        *free = true;
        place = static_cast<std::size_t>(free - taken.begin());
        batch_.cache().copy(places_[beam.parent], place, batch_.position(place));
      }
      continued[beam.parent] = true;
      next.push_back(place);
    }
    places_ = std::move(next);
    return goes_on;
  }

  // The next step feeds the beams' last tokens, and any to the other sequences.
  void feed() {
    const at::Tensor& ids = batch_.state().ids;
    at::Tensor tokens = at::zeros({ids.size(0)}, at::kInt);
    for (std::size_t beam = 0; beam < places_.size(); ++beam) {
      tokens[static_cast<std::int64_t>(places_[beam])] = choice_.beams()[beam].tokens.back();
    }
    ids.copy_(tokens);
  }

  GpuBatch& batch_;
  const GenerateOptions& options_;
  GenerateResult& result_;
  BeamChoice choice_;
  std::vector<std::size_t> places_ = {0};  // sequences of the running beams
};

}  // namespace

void search_gpu_beams(GpuBatch& batch, const GenerateOptions& options, std::int64_t prefill_chunk,
                      GenerateResult& result) {
  const std::size_t first = result.sequences.size();
  GpuBeamSearch search(batch, options, result);
  result.sequences.resize(first + static_cast<std::size_t>(options.num_samples));
  if (result.interrupted) {
    return;
  }
  const auto start = Clock::now();
  try {
    search.read_prompt(prefill_chunk);
  } catch (const Interrupted&) {
    result.interrupted = true;
    return;
  }
  result.timing.prefill_seconds += seconds_since(start);
  result.timing.prefill_tokens += batch.length(0);
  const auto decode_start = Clock::now();
  std::vector<FinishedBeam> finished;
  if (options.max_new_tokens > 0) {
    finished = search.run();
  }
  result.timing.decode_seconds += seconds_since(decode_start);
  result.sequences[first].prompt_logits = batch.prompt_logits().front();
  for (std::size_t sample = 0; first + sample < result.sequences.size(); ++sample) {
    Generated& generated = result.sequences[first + sample];
    if (sample < finished.size()) {
      generated.tokens = std::move(finished[sample].tokens);
    }
    generated.num_tokens = batch.position(0);
    generated.reuse = batch.report(0);
    generated.bytes = batch.cache().bytes(search.best_running());
  }
}

}  // namespace kvc
