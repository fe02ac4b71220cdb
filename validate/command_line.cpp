#include "validate/command_line.h"

#include <fmt/ranges.h>

#include <cstdio>
#include <memory>
#include <optional>

#include "core/error.h"
#include "core/output.h"
#include "validate/report.h"
#include "validate/validate.h"

namespace kvc {
namespace {

struct Outputs {
  std::filesystem::path report, html;  // empty: not written
};

// Opened before the work, so that one that cannot be written is known at once.
std::optional<OutputFile> open_output(const std::filesystem::path& path, bool force) {
  return path.empty() ? std::nullopt : std::make_optional<OutputFile>(path, force);
}

void finish(OutputFile& file, const std::string& text) {
  write_file(file.path(), text);
  file.commit();
}

void run(const ValidateOptions& options, const Outputs& outputs, const CommonOptions& common) {
  KVC_CHECK_USAGE(
      outputs.report.empty() || output_path(outputs.report) != output_path(outputs.html),
      "--report and --html name the same file, {}", outputs.report.string());
  std::optional<OutputFile> json_file = open_output(outputs.report, common.force);
  std::optional<OutputFile> html_file = open_output(outputs.html, common.force);
  const ValidationReport report = validate(options);
  const std::string json = dump_json(to_json(report));
  if (json_file) {
    finish(*json_file, json);
  }
  if (html_file) {
    finish(*html_file, html_report(report));
  }
  std::fputs((common.json ? json : text_report(report)).c_str(), stdout);
  if (!report.missed.empty()) {
    throw Error(fmt::format("{}", fmt::join(report.missed, "; ")), ExitCode::kThresholdMissed);
  }
}

}  // namespace

Action declare_validate_options(CLI::App& app, CommonOptions& common) {
  auto options = std::make_shared<ValidateOptions>();
  auto outputs = std::make_shared<Outputs>();
  app.add_option("reference", options->reference, "The original, a HuggingFace directory")
      ->required();
  app.add_option("candidate", options->candidate, "The converted directory")->required();
  app.add_option("--text", options->texts,
                 "Evaluation text: .txt, .jsonl or tokens.h5 (default: built in)");
  app.add_option(
      "--calibration-tokens", options->calibration_tokens,
      "tokens.h5 that the candidate was calibrated on: warns where --text is of another kind");
  app.add_option("--num-sequences", options->num_sequences, "Rows of text")->capture_default_str();
  app.add_option("--seq-len", options->seq_len,
                 "Tokens of each; half is prompt, half is scored (0: the context, at most 2048)");
  app.add_option("--dtype", options->dtype, "float32, bfloat16 or float16")->capture_default_str();
  app.add_option(
      "--kv-dtype", options->kv_dtype,
      "What the candidate's cache stores: float32, bfloat16, float16, int8, int4 or int2");
  app.add_option_function<std::string>(
      "--policy",
      [options](const std::string& text) { options->policy = parse_token_policy(text); },
      "Which tokens the candidate's cache keeps, as kvrun's --policy");
  app.add_option_function<std::string>(
      "--selective",
      [options](const std::string& text) { options->selective = parse_selective(text); },
      "Which latents the candidate rebuilds, as kvrun's --selective");
  app.add_option("--block", options->block_tokens,
                 "Score blocks of this many tokens, each after a fresh prefill of all tokens "
                 "before it (0: the second half after the first)");
  app.add_option("--recall", options->num_recalls,
                 "Also test recall of this many lists of facts (a task that the bundled model was "
                 "trained on)");
  app.add_option("--report", outputs->report, "Write every number here (JSON)");
  app.add_option("--html", outputs->html, "Write a page with tables and charts here");
  app.add_option("--max-kld", options->max_kld,
                 "Fail (exit 3) when the continuation's mean KL divergence is larger");
  app.add_option("--max-ppl-ratio", options->max_ppl_ratio,
                 "Fail when its perplexity ratio is larger");
  app.add_option("--min-same-top", options->min_same_top,
                 "Fail when the share of equal top tokens is smaller, 0 to 1");
  return [options, outputs, &common] {
    require_cpu(common);
    options->seed = common.seed;
    run(*options, *outputs, common);
  };
}

}  // namespace kvc
