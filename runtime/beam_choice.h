// The beams with which a beam search continues, from the logits of each: as transformers' generate() with
// num_beams, length_penalty 1 and early_stopping False.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <utility>
#include <vector>

namespace kvc {

struct BeamOptions {
  std::size_t num_beams = 1;
  std::int64_t max_new_tokens = 0;
  std::vector<std::int64_t> stop_ids{};
};

struct RunningBeam {
  std::size_t parent = 0;  // the beam that it continues, as of the last choice
  std::vector<std::int64_t> tokens;
  float score = 0;  // sum of the logarithms of all tokens' probabilities
};

struct FinishedBeam {
  std::vector<std::int64_t> tokens;  // without an end token
  float score = 0;                   // per token
};

class BeamChoice {
 public:
  explicit BeamChoice(BeamOptions options) : options_(std::move(options)) { beams_.emplace_back(); }

  // One prompt's running texts, best first; initially only the prompt.
  const std::vector<RunningBeam>& beams() const { return beams_; }
  // Chooses the next beams, and those that end; false if nothing can improve. rows[i]: [1, vocab_size] float32
  // logits behind beam i, as check_logits requires.
  bool advance(const std::vector<at::Tensor>& rows);
  // Best first, at most num_beams; after an interruption also those still running.
  std::vector<FinishedBeam> finished(bool interrupted);

 private:
  // A beam with one more token.
  struct Continued {
    std::size_t beam = 0;
    std::int64_t token = 0;
    float score = 0;
  };
  std::vector<Continued> continuations(const std::vector<at::Tensor>& rows) const;
  bool is_end(std::int64_t token) const;
  void finish(std::vector<std::int64_t> tokens, float score, std::size_t num_scored);
  void take(const std::vector<Continued>& running);

  BeamOptions options_;
  std::vector<RunningBeam> beams_;
  std::vector<FinishedBeam> finished_;
};

}  // namespace kvc
