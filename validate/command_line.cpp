#include "validate/command_line.h"

#include <fmt/ranges.h>

#include <algorithm>
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

void check_different(const std::vector<std::pair<const char*, std::filesystem::path>>& files) {
  for (std::size_t i = 0; i < files.size(); ++i) {
    for (std::size_t j = 0; j < i; ++j) {
      KVC_CHECK_USAGE(
          files[i].second.empty() || output_path(files[i].second) != output_path(files[j].second),
          "{} and {} name the same file, {}", files[j].first, files[i].first,
          files[i].second.string());
    }
  }
}

void run(const ValidateOptions& options, const Outputs& outputs, const CommonOptions& common) {
  check_different({{"--report", outputs.report},
                   {"--html", outputs.html},
                   {"--task-results", options.tasks.results}});
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

void declare_task_options(CLI::App& app, const std::shared_ptr<ValidateOptions>& options) {
  TaskOptions& tasks = options->tasks;
  app.add_option("--tasks", tasks.names,
                 "Also compare the answers to tasks: NAME,... (docs/tasks.md)")
      ->delimiter(',');
  app.add_option("--task-length", tasks.lengths,
                 "Tokens of a prompt and its answer: N,... (default: the context, at most 4096)")
      ->delimiter(',');
  app.add_option("--task-samples", tasks.num_samples, "Prompts of each task at each length")
      ->capture_default_str();
  app.add_option("--task-text", tasks.texts, "Files that tasks read (default: built-in prose)");
  app.add_flag("--task-questions-after", tasks.questions_after,
               "Read questions through the compressed cache instead of with the prompt");
  app.add_flag("--task-chat", tasks.chat,
               "Ask through the original's chat template, as a user's message");
  app.add_option("--task-results", tasks.results,
                 "JSONL file with a line per prompt, which an interrupted run continues");
  app.add_option("--min-task-ratio", tasks.min_ratio,
                 "Fail with exit code 3 if the candidate's score of any task is less than this "
                 "share of the original's");
}

}  // namespace

Action declare_validate_options(CLI::App& app, CommonOptions& common) {
  auto options = std::make_shared<ValidateOptions>();
  auto outputs = std::make_shared<Outputs>();
  app.add_option("reference", options->reference, "Original HuggingFace directory")->required();
  app.add_option("candidate", options->candidate, "Directory to compare with it, converted or not")
      ->required();
  app.add_option("--text", options->texts,
                 "Evaluation text: .txt, .jsonl or tokens.h5 (default: built in)");
  app.add_option("--calibration-tokens", options->calibration_tokens,
                 "tokens.h5 of the candidate's calibration: warn if --text is of another kind");
  app.add_option("--num-sequences", options->num_sequences, "Rows of text")->capture_default_str();
  app.add_option("--seq-len", options->seq_len,
                 "Tokens per row: the first half is the prompt, the second is scored (0: the "
                 "context, at most 2048)");
  app.add_option("--dtype", options->dtype, "Compute in float32, bfloat16 or float16")
      ->capture_default_str();
  app.add_option("--kv-dtype", options->kv_dtype,
                 "Dtype of the candidate's cache: float32, bfloat16, float16, int8, int4 or int2");
  app.add_option_function<std::string>(
      "--policy",
      [options](const std::string& text) { options->policy = parse_token_policy(text); },
      "Tokens that the candidate's cache keeps, as kvrun's --policy");
  app.add_option_function<std::string>(
      "--selective",
      [options](const std::string& text) { options->selective = parse_selective(text); },
      "Latents that the candidate rebuilds, as kvrun's --selective");
  app.add_option("--block", options->block_tokens,
                 "Score blocks of this many tokens, each after a prefill of all tokens before it "
                 "(0: the second half after the first)");
  app.add_flag(
      "--by-part", options->by_part,
      "Also measure what each converted part (group, layer or pair) costs alone, with all other "
      "layers plain");
  app.add_option(
      "--recall", options->num_recalls,
      "Also test recall of this many lists of facts, a task of the bundled reference model");
  declare_task_options(app, options);
  app.add_option("--report", outputs->report, "JSON file for every number");
  app.add_option("--html", outputs->html, "HTML file for tables and charts");
  app.add_option("--max-kld", options->max_kld,
                 "Fail with exit code 3 if the mean KL divergence is larger");
  app.add_option("--max-ppl-ratio", options->max_ppl_ratio,
                 "Fail with exit code 3 if the perplexity ratio is larger");
  app.add_option("--min-same-top", options->min_same_top,
                 "Fail with exit code 3 if the share of equal top tokens (0 to 1) is smaller");
  offer_only_cpu(app);
  return [options, outputs, &common, &app] {
    require_cpu(common);
    const bool are_rows =
        !options->texts.empty() &&
        std::ranges::all_of(options->texts, [](const std::filesystem::path& text) {
          return text.extension() == ".h5";
        });
    for (const char* option : {"--num-sequences", "--seq-len"}) {
      KVC_CHECK_USAGE(!are_rows || app.count(option) == 0,
                      "{}: cuts a text, and --text names rows of tokens; leave it out", option);
    }
    options->seed = common.seed;
    options->tasks.force = common.force;
    run(*options, *outputs, common);
  };
}

}  // namespace kvc
