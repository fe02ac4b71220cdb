#include "validate/validate.h"

#include <algorithm>

#include "core/checkpoint.h"
#include "core/error.h"
#include "core/progress.h"
#include "core/provenance.h"
#include "model/cache_plan.h"
#include "model/config.h"
#include "model/weights.h"
#include "runtime/engine.h"
#include "validate/comparer.h"
#include "validate/evaluation_text.h"
#include "validate/read_cache.h"
#include "validate/recall_task.h"
#include "validate/reference_run.h"
#include "validate/task_suite.h"
#include "validate/validate_options.h"
#include "validate/verdict.h"

namespace kvc {
namespace {

constexpr std::int64_t kBatchTokens = 8192;
constexpr std::int64_t kBatchLogitBytes = std::int64_t{256} << 20;  // of one model

void check_comparable(const ValidateOptions& options, const ModelConfig& reference,
                      const ModelConfig& candidate) {
  KVC_CHECK(reference.vocab_size == candidate.vocab_size,
            "{} has {} tokens in its vocabulary, {} has {}; only models with the same vocabulary "
            "can be compared",
            options.reference.string(), reference.vocab_size, options.candidate.string(),
            candidate.vocab_size);
}

// Numbers as a run of the model would cache them: no wider than those of its own cache.
std::string stored_dtype(const std::string& compute, const ModelConfig& model) {
  const KvDtype own = cache_dtype(model);
  if (compute.empty()) {
    return to_string(own);
  }
  const auto width = static_cast<std::int64_t>(c10::elementSize(parse_scalar_type(compute)));
  return width > bytes_per_element(own) ? to_string(own) : compute;
}

// Without what a conversion adds, and without the code that it names.
Json model_json(const Checkpoint& checkpoint, const ModelConfig& config) {
  Json json = checkpoint.config();
  json["model_type"] = config.arch->model_type;
  json.erase("kvconvert");
  json.erase("auto_map");
  return json;
}

void check_parts(const ValidateOptions& options, const KvPlan& candidate) {
  KVC_CHECK(
      !options.by_part || candidate.num_layers_from(KvSource::kPlain) < candidate.num_layers(),
      "{}: --by-part, but every layer keeps plain KV; leave it out, or name a factored conversion",
      options.candidate.string());
}

// Every option as the run used it.
ValidateOptions resolve(ValidateOptions options, const ModelConfig& config,
                        const ModelConfig& candidate) {
  if (options.kv_dtype.empty()) {
    options.kv_dtype = stored_dtype(options.dtype, candidate);
  }
  if (options.seq_len == 0) {
    options.seq_len = default_seq_len(config);
  }
  if (!options.tasks.names.empty()) {
    options.tasks.lengths = task_lengths(options.tasks, config);
  }
  KVC_CHECK_USAGE(options.seq_len <= config.max_position_embeddings,
                  "--seq-len {}: the model's context is {} tokens", options.seq_len,
                  config.max_position_embeddings);
  return options;
}

bool is_converted(const Checkpoint& checkpoint) {
  return checkpoint.config().contains("kvconvert");
}

Json inputs_json(const Checkpoint& reference, const Checkpoint& candidate, const TokenSet& text) {
  return {{"reference_hash", reference.hash()},
          {"candidate_hash", candidate.hash()},
          {"tokenizer_hash", text.tokenizer_hash},
          {"text_hashes", text.source_hashes},
          {"tokens_hash", text.hash()},
          {"calibration_overlap", records_calibration(candidate)
                                      ? "no evaluation text has the bytes of a calibration text"
                                      : "the candidate does not record its calibration texts"}};
}

// What results of tasks depend on besides the tasks' own options.
Json task_identity(const ValidateOptions& options, const Checkpoint& reference,
                   const Checkpoint& candidate, const TokenSet& text) {
  return {{"tool_version", kToolVersion},
          {"reference_hash", reference.hash()},
          {"candidate_hash", candidate.hash()},
          {"tokenizer_hash", text.tokenizer_hash},
          {"dtype", options.dtype},
          {"kv_dtype", options.kv_dtype},
          {"policy", to_string(options.policy)},
          {"selective", options.selective ? Json(to_string(*options.selective)) : Json(nullptr)},
          {"seed", options.seed}};
}

std::size_t rows_per_batch(const TokenRows& rows, std::int64_t vocab_size) {
  const std::int64_t longest = longest_row(rows);
  const std::int64_t row_bytes = longest * vocab_size * 4;
  const std::int64_t count = std::min(kBatchTokens / longest, kBatchLogitBytes / row_bytes);
  return static_cast<std::size_t>(std::max<std::int64_t>(count, 1));
}

ValidationReport compare_rows(Comparer& comparer, const TokenRows& rows, std::int64_t vocab_size) {
  Progress progress("validate", static_cast<std::int64_t>(rows.size()));
  const std::size_t step = rows_per_batch(rows, vocab_size);
  for (std::size_t begin = 0; begin < rows.size(); begin += step) {
    const std::size_t end = std::min(begin + step, rows.size());
    comparer.add(TokenRows(rows.begin() + static_cast<std::ptrdiff_t>(begin),
                           rows.begin() + static_cast<std::ptrdiff_t>(end)));
    progress.advance(static_cast<std::int64_t>(end - begin));
  }
  return comparer.finalize();
}

Engine load_candidate(const ValidateOptions& options) {
  EngineOptions engine_options;
  engine_options.dtype = options.dtype;
  engine_options.kv_dtype = options.kv_dtype;
  engine_options.policy = options.policy;
  engine_options.selective = options.selective;
  return Engine::load(options.candidate, engine_options);
}

}  // namespace

ValidationReport validate(const ValidateOptions& given) {
  check_options(given);
  const Checkpoint reference_checkpoint = Checkpoint::open(given.reference);
  const Checkpoint candidate_checkpoint = Checkpoint::open(given.candidate);
  const ModelConfig config = read_model_config(reference_checkpoint);
  const ModelConfig candidate_config = read_model_config(candidate_checkpoint);
  check_comparable(given, config, candidate_config);
  if (is_converted(reference_checkpoint) && !is_converted(candidate_checkpoint)) {
    log_info(fmt::format("{} is converted and {} is not; the original is named first",
                         given.reference.string(), given.candidate.string()));
  }
  const ValidateOptions options = resolve(given, config, candidate_config);
  const TokenSet text = load_evaluation_text(options, candidate_checkpoint, config);
  std::optional<TaskSuite> tasks;
  if (!options.tasks.names.empty()) {
    tasks.emplace(options, config,
                  task_identity(options, reference_checkpoint, candidate_checkpoint, text));
  }

  ReferenceRun reference(options, reference_checkpoint.hash());
  Engine candidate = load_candidate(options);
  check_parts(options, candidate.plan());
  // One pass that serves both settings is measured: it costs nothing more.
  const bool reads_alike = !candidate.continues_as_prompts() && candidate.reads_prompts_exactly() &&
                           model_json(candidate_checkpoint, candidate_config) ==
                               model_json(reference_checkpoint, config) &&
                           keeps_weights(candidate_checkpoint, reference_checkpoint);
  Comparer comparer(reference, plain_plan(config), candidate, reads_alike, options);
  ValidationReport report = compare_rows(comparer, text.sequences, config.vocab_size);
  if (options.num_recalls > 0) {
    const Tokenizer tokenizer = Tokenizer::load(options.reference);
    report.recall =
        compare_recall(reference.engine(), candidate, tokenizer, options.num_recalls, options.seed);
  }
  if (tasks) {
    report.tasks = tasks->run(reference.engine(), candidate);
  }
  if (is_converted(candidate_checkpoint)) {
    report.payback = payback(
        factor_bytes(candidate_checkpoint, reference_checkpoint),
        static_cast<double>(report.original_kv_bytes) / static_cast<double>(report.num_tokens),
        report.kept_ratio);
  }
  if (!options.calibration_tokens.empty()) {
    report.calibration_nll = reference.calibration(options.calibration_tokens);
    report.overlap =
        find_overlap(text, read_token_set(options.calibration_tokens, config.vocab_size));
  }
  report.layers = layer_shares(candidate.plan(), cache_dtype(candidate_config),
                               parse_kv_dtype(options.kv_dtype));
  report.read_ratio =
      read_ratio(candidate, plain_plan(config), longest_row(text.sequences), options.block_tokens);
  report.options = options_json(options);
  report.inputs = inputs_json(reference_checkpoint, candidate_checkpoint, text);
  report.missed = missed_thresholds(options, report);
  report.imprecise = precision_warnings(options, report);
  return report;
}

}  // namespace kvc
