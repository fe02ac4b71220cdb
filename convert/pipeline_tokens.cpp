#include "convert/pipeline.h"

#include <algorithm>
#include <cmath>
#include <span>

#include "convert/methods/methods.h"
#include "core/error.h"
#include "core/hash.h"
#include "core/hdf5.h"
#include "core/interrupt.h"
#include "core/progress.h"
#include "model/text.h"
#include "runtime/program/self_text.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

// What the model writes where other text is given too, as a share of the rows.
constexpr double kSelfShare = 0.5;

std::string tokenizer_hash(const Checkpoint& checkpoint) {
  const fs::path& directory = checkpoint.directory();
  return Tokenizer::exists(directory) ? Tokenizer::hash_of(directory) : std::string();
}

std::string hash_of(const Rows& rows) {
  Sha256 sha;
  for (const auto& row : rows) {
    sha.update(std::as_bytes(std::span(row)));
  }
  return sha.hex();
}

TokenSet self_set(const Checkpoint& checkpoint, const Json& settings, const Rows& rows) {
  TokenSet tokens;
  tokens.sequences = rows;
  tokens.tokenizer_hash = tokenizer_hash(checkpoint);
  tokens.source_hashes = {hash_of(rows)};
  tokens.self = settings;
  return tokens;
}

// The rows of an earlier run with these settings, or none.
Rows written_rows(const fs::path& file, const Json& settings) {
  if (!fs::exists(file)) {
    return {};
  }
  try {
    TokenSet tokens = read_token_set(file, 0);
    return tokens.self == settings ? std::move(tokens.sequences) : Rows();
  } catch (const Error& error) {
    check_interrupt();
    log_info(fmt::format("calibration text is sampled again: {}", error.what()));
    return {};
  }
}

TokenSet write_own_text(const Checkpoint& checkpoint, const ModelConfig& config,
                        const SelfTextOptions& options, const fs::path& file) {
  const Json settings = self_text_settings(checkpoint, config, options);
  Rows rows = written_rows(file, settings);
  if (static_cast<std::int64_t>(rows.size()) == options.num_sequences) {
    log_info("calibration text: reused from an earlier run");
  } else {
    rows = write_self_text(checkpoint, config, options, std::move(rows), [&](const Rows& so_far) {
      write_token_set(file, self_set(checkpoint, settings, so_far), /*force=*/true);
    });
  }
  return self_set(checkpoint, settings, rows);
}

// `rows` between those of `tokens`, evenly, so that any part of the rows has both kinds.
void mix_in(const TokenSet& own, TokenSet& tokens) {
  Rows mixed;
  const std::size_t num_own = own.sequences.size(), num_others = tokens.sequences.size();
  for (std::size_t i = 0, j = 0; i + j < num_own + num_others;) {
    if (i * num_others <= j * num_own && i < num_own) {
      mixed.push_back(own.sequences[i++]);
    } else {
      mixed.push_back(std::move(tokens.sequences[j++]));
    }
  }
  tokens.sequences = std::move(mixed);
  tokens.source_hashes.insert(tokens.source_hashes.begin(), own.source_hashes.begin(),
                              own.source_hashes.end());
  tokens.self = own.self;
}

// Where none are given: the built-in text, and for methods with own text also what the model writes, where its texts
// begin with a token of their own.
CalibrationSources sources_of(const PipelineOptions& options, const Checkpoint& checkpoint,
                              const ModelConfig& config) {
  CalibrationSources sources = options.calibration;
  if (sources.self || sources.builtin || !sources.files.empty()) {
    return sources;
  }
  sources.builtin = true;
  sources.self = find_method(options.settings.method).calibration.with_own_text &&
                 !text_bounds(checkpoint.directory(), config).start.empty();
  return sources;
}

TokenSet calibration_tokens(const PipelineOptions& options, const Checkpoint& checkpoint,
                            const ModelConfig& config, const fs::path& work) {
  const CalibrationSources sources = sources_of(options, checkpoint, config);
  const CalibrationEffort effort = choose_effort(config, options.settings, options.effort);
  const bool texts = sources.builtin || !sources.files.empty();
  KVC_CHECK_USAGE(!sources.self || !texts || effort.num_sequences > 1,
                  "--num-sequences 1: half of the rows are the model's own text and half another; "
                  "pass 2 or more, or one --calibration");
  std::int64_t own_rows = 0;
  if (sources.self) {
    own_rows = texts ? std::clamp<std::int64_t>(
                           std::llround(kSelfShare * static_cast<double>(effort.num_sequences)), 1,
                           std::max<std::int64_t>(1, effort.num_sequences - 1))
                     : effort.num_sequences;
  }
  TokenSet tokens;
  if (texts) {
    TextOptions text;
    text.num_sequences = std::max<std::int64_t>(1, effort.num_sequences - own_rows);
    text.seq_len = effort.seq_len;
    text.builtin = sources.builtin;
    text.seed = options.settings.seed;
    tokens = load_token_set(sources.files, Tokenizer::load(checkpoint.directory()),
                            config.vocab_size, text, "calibration");
  }
  if (own_rows > 0) {
    const TokenSet own = write_own_text(checkpoint, config,
                                        {.num_sequences = own_rows,
                                         .seq_len = effort.seq_len,
                                         .seed = options.settings.seed,
                                         .device = options.settings.device},
                                        work / "self.h5");
    tokens.tokenizer_hash = own.tokenizer_hash;
    mix_in(own, tokens);
  }
  return tokens;
}

}  // namespace

TokenSet prepare_tokens(const PipelineOptions& options, const Original& original,
                        const fs::path& work) {
  const CalibrationEffort effort = choose_effort(original.config, options.settings, options.effort);
  const std::int64_t sinks = options.settings.sink_tokens;
  const StatisticsNeeds needs = statistics_needs(original.config, options.settings);
  check_calibration_tokens(  // of the longest texts, before any is written
      effort.num_sequences * std::max<std::int64_t>(0, effort.seq_len - sinks),
      effort.num_sequences, sinks, needs.least_tokens);
  TokenSet tokens = calibration_tokens(options, original.checkpoint, original.config, work);
  const std::int64_t count = num_counted(tokens, sinks), channels = original.config.hidden_size;
  if (count < channels && (needs_calibration(options.settings) || needs.joint_layers > 0)) {
    log_warning(fmt::format(
        "the calibration text has {} tokens, fewer than the {} channels that are measured on it, "
        "so "
        "that the result may fit no other text; give a longer one with --calibration, or more of "
        "it with --num-sequences",
        count, channels));
  }
  write_token_set(work / "tokens.h5", tokens, /*force=*/true);
  return tokens;
}

}  // namespace kvc
