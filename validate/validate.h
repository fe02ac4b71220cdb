// kvvalidate: what a conversion costs. Original and candidate run the same tokens through the same
// decoder in one process.
#pragma once

#include <cstdint>
#include <filesystem>
#include <limits>
#include <optional>
#include <string>
#include <vector>

#include "core/json.h"
#include "core/kv_plan_parts.h"
#include "core/payback.h"
#include "core/token_policy.h"
#include "validate/layer_shares.h"
#include "validate/text_overlap.h"

namespace kvc {

// Tasks that both models answer (validate/tasks/), none if `names` is empty.
struct TaskOptions {
  std::vector<std::string> names;  // of tasks and suites
  std::vector<std::int64_t>
      lengths{};  // tokens, room for the answer included; empty: min(4096, max_position_embeddings)
  std::int64_t num_samples = 20;  // of each task at each length
  std::vector<std::filesystem::path>
      texts{};  // prose for haystacks, files of questions and records
  bool questions_after =
      false;          // questions are read through the compressed cache, not with the prompt
  bool chat = false;  // prompts go through the reference's chat template
  std::filesystem::path results{};  // JSONL, a line per sample; empty: none
  bool force = false;               // replaces `results` and what another run left of it
  std::optional<double> min_ratio;  // candidate's score / reference's, of each task at each length
};

struct ValidateOptions {
  std::filesystem::path reference;
  std::filesystem::path candidate;
  std::vector<std::filesystem::path> texts;  // empty: the built-in evaluation text
  std::int64_t num_sequences = 16;
  std::int64_t seq_len = 0;  // tokens; 0: default_seq_len()
  std::string dtype = "float32";
  std::string
      kv_dtype;  // of the candidate's cache; empty: its own (cache_dtype), or dtype if that is narrower
  TokenPolicy policy{};                                // of the candidate's cache
  std::optional<SelectiveReconstruction> selective{};  // of the candidate
  // 0: the continuation's prompt is the first half of a row. Otherwise every run of so many tokens is
  // scored after a prompt of all tokens before it.
  std::int64_t block_tokens = 0;
  bool by_part =
      false;  // also what each part of the candidate's plan costs alone; without a policy
  std::int64_t num_recalls = 0;  // prompts of the recall task (validate/recall_task.h)
  TaskOptions tasks{};
  std::filesystem::path calibration_tokens{};  // tokens.h5 of the candidate's calibration, or empty
  // A directory where the reference's logits stay for other candidates (validate/reference_run.h), or empty
  std::filesystem::path reference_logits{};
  // For the continuation setting.
  std::optional<double> max_kld, max_ppl_ratio, min_same_top;
  std::uint64_t seed = 0;
};

// A mean over positions with its standard error over sequences (positions of one sequence are not
// independent). The error of a single sequence is unknown: not a number, null in JSON.
struct Estimate {
  double mean = 0;
  double standard_error = std::numeric_limits<double>::quiet_NaN();
};

// Mean KL divergence of the scored positions in [begin, end), counted from the start of a sequence.
struct PositionRange {
  std::int64_t begin = 0, end = 0;
  double kl_divergence = 0;
};

// Counts of per-position KL divergences: bin i holds those in 10^[kFirst + i*kWidth, kFirst +
// (i+1)*kWidth), the first one also everything below, the last one everything above.
struct KlHistogram {
  static constexpr double kFirst = -8, kWidth = 0.25;  // decades
  static constexpr int kNumBins = 40;
  std::vector<std::int64_t> counts = std::vector<std::int64_t>(kNumBins, 0);
};

// One setting's comparison, per scored position; natural logarithms.
struct Comparison {
  std::int64_t num_positions = 0;
  Estimate reference_nll, candidate_nll;
  double reference_perplexity = 0, candidate_perplexity = 0;
  double perplexity_ratio = 0;
  Estimate log_perplexity_ratio;  // paired
  Estimate kl_divergence;         // of the candidate from the reference
  double kl_median = 0, kl_p90 = 0, kl_p95 = 0, kl_p99 = 0, kl_p999 = 0, kl_max = 0;
  Estimate same_top;  // share of positions with equal argmax
  Estimate delta_p;   // candidate minus reference probability of the correct token
  Estimate delta_p_rms;
  KlHistogram kl_histogram;
  std::vector<PositionRange> kl_by_position;
};

// Numbers that follow a thing in the text and are asked for later: how many the models' most likely
// tokens name.
struct Recall {
  std::int64_t num_asked = 0, reference_right = 0, candidate_right = 0;
};

// One task at one length. Scores are 0 to 100; errors are those of samples.
struct TaskScores {
  std::string task;
  std::int64_t length = 0;  // tokens
  std::int64_t num_samples = 0;
  Estimate reference, candidate;
  Estimate difference;  // candidate minus reference, paired
};

// What the candidate costs if it converts these layers alone and keeps the plain KV of all others, in the continuation.
struct PartCost {
  LayerRange layers;
  Estimate kl_divergence;
};

struct ValidationReport {
  // Measured: allocated bytes at the end of the continuation / those of the model's own cache (cache_dtype).
  double kept_ratio = 0;
  std::int64_t kv_bytes = 0, original_kv_bytes = 0;
  std::optional<double> read_ratio{};  // of the longest row (validate/read_cache.h)
  std::int64_t num_sequences = 0, num_tokens = 0;
  Comparison teacher_forced;  // one exact forward over the text: sees weight changes only
  // False where the candidate's logits in that setting are the reference's by construction, and were taken from there.
  bool teacher_forced_ran = true;
  Comparison continuation;  // prefill, compress, score the rest through the compressed cache
  Recall recall;
  std::vector<TaskScores> tasks{};
  std::vector<LayerShare> layers{};  // of the candidate
  std::vector<PartCost> parts{};     // likewise, with ValidateOptions::by_part
  std::optional<Payback> payback;    // of a converted candidate, at the end of the continuation
  std::optional<Estimate> calibration_nll{};  // the reference's on the calibration text
  std::optional<TextOverlap> overlap{};       // with the calibration text, where that is known
  std::vector<std::string> missed;            // thresholds, as sentences
  std::vector<std::string> imprecise{};  // numbers that too little text stands behind, as sentences
  Json options;                          // every option, resolved
  Json inputs;                           // what identifies checkpoints and text
};

// Error when the two cannot be compared (vocabulary, tokenizer), when the text was calibrated on,
// or when a model's logits are not finite. A missed threshold is no Error here: see
// ValidationReport::missed.
ValidationReport validate(const ValidateOptions& options);
Json to_json(const ValidationReport& report);
// "kept_ratio 0.50 of 1024 tokens  KLD 0.0123 ± 0.0004  perplexity ratio 1.004  same top 97.1 %", and of conversions
// "  pays from ..."
std::string summary_line(const ValidationReport& report);
// That line, and one for each of warnings(); each with its end.
std::string summary_lines(const ValidationReport& report);
// The numbers of both settings as a table for a terminal.
std::string text_report(const ValidationReport& report);

}  // namespace kvc
