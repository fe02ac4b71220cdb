#include "runtime/beam_choice.h"

#include <algorithm>
#include <utility>

#include "runtime/sampler.h"

namespace kvc {

// The most probable continuations of all beams, enough of them that num_beams do not end.
std::vector<BeamChoice::Continued> BeamChoice::continuations(
    const std::vector<at::Tensor>& rows) const {
  std::vector<at::Tensor> scores;
  for (std::size_t i = 0; i < beams_.size(); ++i) {
    check_logits(rows[i]);
    scores.push_back(rows[i].log_softmax(-1) + beams_[i].score);
  }
  const at::Tensor all = at::cat(scores).flatten();
  const auto count = static_cast<std::int64_t>(
      std::max<std::size_t>(2, 1 + options_.stop_ids.size()) * options_.num_beams);
  const auto [best, indices] = all.topk(std::min(count, all.numel()));
  const std::int64_t vocab_size = rows.front().size(-1);
  std::vector<Continued> continued;
  for (std::int64_t i = 0; i < best.numel(); ++i) {
    const auto index = indices[i].item<std::int64_t>();
    continued.push_back(
        {static_cast<std::size_t>(index / vocab_size), index % vocab_size, best[i].item<float>()});
  }
  return continued;
}

bool BeamChoice::is_end(std::int64_t token) const {
  return std::find(options_.stop_ids.begin(), options_.stop_ids.end(), token) !=
         options_.stop_ids.end();
}

// Keeps the num_beams best.
void BeamChoice::finish(std::vector<std::int64_t> tokens, float score, std::size_t num_scored) {
  if (num_scored == 0) {
    return;
  }
  const FinishedBeam finished{std::move(tokens), score / static_cast<float>(num_scored)};
  const auto place =
      std::find_if(finished_.begin(), finished_.end(),
                   [&](const FinishedBeam& other) { return other.score < finished.score; });
  finished_.insert(place, finished);
  finished_.resize(std::min(finished_.size(), options_.num_beams));
}

bool BeamChoice::advance(const std::vector<at::Tensor>& rows) {
  const std::size_t length = beams_.front().tokens.size() + 1;
  const bool is_last = length == static_cast<std::size_t>(options_.max_new_tokens);
  std::vector<Continued> running;
  const std::vector<Continued> continued = continuations(rows);
  for (std::size_t rank = 0; rank < continued.size(); ++rank) {
    const Continued& candidate = continued[rank];
    const bool ends = is_end(candidate.token);
    if (!ends && !is_last) {
      if (running.size() < options_.num_beams) {
        running.push_back(candidate);
      }
    } else if (rank < options_.num_beams) {
      std::vector<std::int64_t> tokens = beams_[candidate.beam].tokens;
      if (!ends) {
        tokens.push_back(candidate.token);
      }
      finish(std::move(tokens), candidate.score, length);
    }
  }
  if (running.empty()) {
    for (std::size_t beam = 0; beam < beams_.size(); ++beam) {
      beams_[beam].parent = beam;  // they stay
    }
    return false;
  }
  take(running);
  return finished_.size() < options_.num_beams ||
         beams_.front().score / static_cast<float>(length) > finished_.back().score;
}

void BeamChoice::take(const std::vector<Continued>& running) {
  std::vector<RunningBeam> next;
  for (const Continued& candidate : running) {
    next.push_back({candidate.beam, beams_[candidate.beam].tokens, candidate.score});
    next.back().tokens.push_back(candidate.token);
  }
  beams_ = std::move(next);
}

std::vector<FinishedBeam> BeamChoice::finished(bool interrupted) {
  for (std::size_t beam = 0; beam < beams_.size() && interrupted; ++beam) {
    finish(beams_[beam].tokens, beams_[beam].score, beams_[beam].tokens.size());
  }
  return std::move(finished_);
}

}  // namespace kvc
