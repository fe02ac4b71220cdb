#include "runtime/program/self_text.h"

#include <algorithm>

#include "core/error.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "model/cache_plan.h"
#include "model/tokenizer/tokenizer.h"
#include "runtime/gpu/step_support.h"
#include "runtime/program/generation_config.h"
#include "runtime/program/runner.h"

namespace kvc {
namespace {

constexpr std::int64_t kCacheBytes = std::int64_t{2} << 30;  // of the rows written together
constexpr std::int64_t kMostRows = 64;

std::vector<std::int64_t> tokenizer_start(const std::filesystem::path& model) {
  if (!Tokenizer::exists(model)) {
    return {};
  }
  const Tokenizer tokenizer = Tokenizer::load(model);
  const std::vector<std::int64_t> special = tokenizer.with_special_tokens({});
  std::int64_t text = 0;  // a token that is none of them: what is before it begins a text
  while (std::find(special.begin(), special.end(), text) != special.end()) {
    ++text;
  }
  std::vector<std::int64_t> ids = tokenizer.with_special_tokens({text});
  ids.erase(std::find(ids.begin(), ids.end(), text), ids.end());
  return ids;
}

// A different stream of random numbers for every row and every time its batch goes on.
std::uint64_t seed_of(std::uint64_t seed, std::int64_t first_row, std::uint64_t round) {
  constexpr std::uint64_t kOdd = 0x9E3779B97F4A7C15u;
  return (seed * kOdd + static_cast<std::uint64_t>(first_row)) * kOdd +
         round * static_cast<std::uint64_t>(kMostRows);
}

// Rows on their way: what each has, and which are short of their length.
class RowWriter {
 public:
  RowWriter(const TextBounds& bounds, const SelfTextOptions& options, std::int64_t num_rows,
            const std::function<void()>& advance)
      : bounds_(bounds),
        length_(static_cast<std::size_t>(options.seq_len)),
        rows_(static_cast<std::size_t>(num_rows), bounds.start),
        advance_(advance) {}

  std::vector<std::size_t> unfinished() const {
    std::vector<std::size_t> unfinished;
    for (std::size_t row = 0; row < rows_.size(); ++row) {
      if (rows_[row].size() < length_) {
        unfinished.push_back(row);
      }
    }
    return unfinished;
  }

  // Whether the text goes on behind `token`.
  bool append(std::size_t row, std::int64_t token) {
    std::vector<std::int64_t>& ids = rows_[row];
    ids.push_back(token);
    advance_();
    const bool ends =
        std::find(bounds_.ends.begin(), bounds_.ends.end(), token) != bounds_.ends.end();
    if (ends) {  // a token that begins a text ends the one before, too
      const std::ptrdiff_t begun = token == bounds_.start.front() ? 1 : 0;
      ids.insert(ids.end(), bounds_.start.begin() + begun, bounds_.start.end());
      ids.resize(std::min(ids.size(), length_));
    }
    return !ends && ids.size() < length_;
  }

  const std::vector<std::int64_t>& row(std::size_t index) const { return rows_[index]; }
  Rows take() { return std::move(rows_); }

 private:
  const TextBounds& bounds_;
  std::size_t length_;
  Rows rows_;
  const std::function<void()>& advance_;
};

// The CPU where the GPU runtime does not do this model.
std::string writing_device(const SelfTextOptions& options, const ModelConfig& config) {
  if (options.device == "cpu" || options.device == "auto") {
    return "cpu";
  }
  try {
    check_gpu_model(config, plain_plan(config));
    return options.device;
  } catch (const Error& error) {
    log_info(fmt::format("calibration text is sampled on the CPU: {}", error.what()));
    return "cpu";
  }
}

// The GPU runtime has 16-bit types; the CPU writes in the checkpoint's.
std::string writing_dtype(const std::string& device, const ModelConfig& config) {
  return device == "cpu" || config.dtype == "float16" || config.dtype == "bfloat16" ? ""
                                                                                    : "bfloat16";
}

std::int64_t rows_at_a_time(const ModelConfig& config, const SelfTextOptions& options) {
  const std::int64_t row_bytes =
      original_bytes(plain_plan(config), options.seq_len, cache_dtype(config));
  return std::clamp<std::int64_t>(kCacheBytes / std::max<std::int64_t>(1, row_bytes), 1, kMostRows);
}

}  // namespace

TextBounds text_bounds(const std::filesystem::path& model, const ModelConfig& config) {
  TextBounds bounds;
  bounds.start = tokenizer_start(model);
  bounds.ends = stop_ids(model, config);
  if (bounds.start.empty() && config.bos_token_id) {
    bounds.start = {*config.bos_token_id};
  } else if (bounds.start.empty() && !bounds.ends.empty()) {
    bounds.start = {bounds.ends.front()};
  }
  if (bounds.start.empty()) {
    return bounds;
  }
  if (std::find(bounds.ends.begin(), bounds.ends.end(), bounds.start.front()) ==
      bounds.ends.end()) {
    bounds.ends.push_back(bounds.start.front());
  }
  return bounds;
}

Rows write_rows(const GenerateRows& generate, const TextBounds& bounds,
                const SelfTextOptions& options, std::int64_t first_row, std::int64_t num_rows,
                const std::function<void()>& advance) {
  RowWriter writer(bounds, options, num_rows, advance);
  GenerateOptions generation;
  generation.sampling.temperature = 1;
  generation.stopped = is_interrupted;
  std::vector<std::size_t> active = writer.unfinished();
  for (std::uint64_t round = 0; !active.empty(); ++round, active = writer.unfinished()) {
    Engine::Ids prompts;
    std::size_t shortest = static_cast<std::size_t>(options.seq_len);
    for (const std::size_t row : active) {
      prompts.push_back(writer.row(row));
      shortest = std::min(shortest, prompts.back().size());
    }
    generation.seed = seed_of(options.seed, first_row, round);
    generation.max_new_tokens = options.seq_len - static_cast<std::int64_t>(shortest);
    generate(prompts, generation, [&](std::size_t index, std::int64_t token) {
      return writer.append(active[index], token);
    });
    check_interrupt();
  }
  return writer.take();
}

Json self_text_settings(const Checkpoint& checkpoint, const ModelConfig& config,
                        const SelfTextOptions& options) {
  const TextBounds bounds = text_bounds(checkpoint.directory(), config);
  KVC_CHECK(!bounds.start.empty(),
            "{}: neither the tokenizer nor config.json names a token that begins a text, so none "
            "can be sampled; give --calibration builtin or FILE",
            checkpoint.directory().string());
  const std::string device = writing_device(options, config);
  return {{"checkpoint_hash", checkpoint.hash()},
          {"num_sequences", options.num_sequences},
          {"seq_len", options.seq_len},
          {"rows_at_a_time", rows_at_a_time(config, options)},
          {"temperature", 1},
          {"seed", options.seed},
          {"start_ids", bounds.start},
          {"end_ids", bounds.ends},
          {"device", device},
          {"dtype", writing_dtype(device, config)}};
}

Rows write_self_text(const Checkpoint& checkpoint, const ModelConfig& config,
                     const SelfTextOptions& options, Rows written,
                     const std::function<void(const Rows&)>& keep) {
  const TextBounds bounds = text_bounds(checkpoint.directory(), config);
  KVC_CHECK_USAGE(
      options.seq_len > static_cast<std::int64_t>(bounds.start.size()),
      "--seq-len {}: the {} tokens that begin a text leave no room for more; use longer sequences",
      options.seq_len, bounds.start.size());
  RunOptions running;
  running.model = checkpoint.directory();
  running.device = writing_device(options, config);
  running.engine.dtype = writing_dtype(running.device, config);
  const Runner runner = load_runner(running);
  Progress progress("calibration text", options.num_sequences * options.seq_len);
  const std::int64_t step = rows_at_a_time(config, options);
  for (auto row = static_cast<std::int64_t>(written.size()); row < options.num_sequences;
       row += step) {
    Rows rows =
        write_rows(runner.generate, bounds, options, row,
                   std::min(step, options.num_sequences - row), [&] { progress.advance(); });
    written.insert(written.end(), std::make_move_iterator(rows.begin()),
                   std::make_move_iterator(rows.end()));
    keep(written);
  }
  return written;
}

}  // namespace kvc
