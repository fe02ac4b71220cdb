#include "validate/tasks/length_fit.h"

#include <algorithm>
#include <optional>

#include "core/error.h"

namespace kvc {
namespace {

struct SizedCount {
  std::size_t size = 0;
  std::int64_t tokens = 0;
};

// Where a line through two counts reaches `budget`.
double crossing(const SizedCount& below, const SizedCount& above, std::int64_t budget) {
  const double slope = static_cast<double>(above.tokens - below.tokens) /
                       static_cast<double>(above.size - below.size);
  return static_cast<double>(below.size) +
         static_cast<double>(budget - below.tokens) / std::max(slope, 1e-3);
}

// The largest size whose count is within `budget`: `fits` is, and so on while sizes grow by what the last growth
// suggests; then the gap is narrowed by interpolation and halving in turn.
std::size_t largest_size(SizedCount fits, std::size_t most, std::int64_t budget,
                         const std::function<std::int64_t(std::size_t)>& tokens_of) {
  std::optional<SizedCount> exceeds;
  std::size_t next = std::min(most, fits.size + 16);
  for (int round = 0; fits.size < most && (!exceeds || exceeds->size - fits.size > 1); ++round) {
    const SizedCount tried{next, tokens_of(next)};
    const SizedCount last = fits;
    (tried.tokens <= budget ? fits : exceeds.emplace()) = tried;
    if (!exceeds) {
      const double far = crossing(last, fits, budget);
      const auto step = std::max(far - static_cast<double>(fits.size), 1.0);
      next = fits.size +
             static_cast<std::size_t>(std::min(step, static_cast<double>(most - fits.size)));
    } else {
      const std::size_t gap = exceeds->size - fits.size;
      const auto guess = static_cast<std::size_t>(crossing(fits, *exceeds, budget));
      next = round % 3 == 2 ? fits.size + gap / 2 : guess;
      next = std::clamp(next, fits.size + 1, std::max(exceeds->size - 1, fits.size + 1));
    }
  }
  return fits.size;
}

}  // namespace

TaskSample largest_that_fits(const TaskDraw& draw, const SizeRange& sizes,
                             const SizedSample& make) {
  const auto tokens_of = [&](std::size_t size) {
    return prompt_tokens(draw.format, make(size, draw.random), draw.questions_after);
  };
  const std::int64_t budget = draw.length - draw.max_new_tokens;
  const SizedCount least{sizes.least, tokens_of(sizes.least)};
  if (draw.least_length != nullptr) {
    *draw.least_length = least.tokens + draw.max_new_tokens;
    return make(sizes.least, draw.random);
  }
  KVC_CHECK(least.tokens <= budget,
            "--task-length {}: {} takes at least {} tokens with this model's tokenizer, {} of them "
            "for the answer; give a greater length",
            draw.length, draw.task, least.tokens + draw.max_new_tokens, draw.max_new_tokens);
  if (sizes.often_all && tokens_of(sizes.most) <= budget) {
    return make(sizes.most, draw.random);
  }
  return make(largest_size(least, sizes.most, budget, tokens_of), draw.random);
}

}  // namespace kvc
