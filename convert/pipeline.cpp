#include "convert/pipeline.h"

#include <cstdio>
#include <optional>
#include <utility>

#include "convert/fusion/fusion_plan.h"
#include "convert/model_card.h"
#include "convert/plan.h"
#include "convert/plan_table.h"
#include "convert/work_directory.h"
#include "core/checkpoint.h"
#include "core/error.h"
#include "core/kv_plan_parts.h"
#include "core/output.h"
#include "core/progress.h"
#include "export/export_config.h"
#include "model/config.h"
#include "validate/evaluation_text.h"
#include "validate/report.h"
#include "validate/validate.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

void check_inputs_apart(const PipelineOptions& options) {
  check_apart(options.out, options.checkpoint);
  for (const auto* texts : {&options.calibration.files, &options.validation_text}) {
    for (const fs::path& text : *texts) {
      check_apart(options.out, text);
    }
  }
  for (const auto& [place, name] :
       {std::pair{options.out, "output"}, {options.checkpoint, "checkpoint"}}) {
    KVC_CHECK_USAGE(options.work.empty() || !is_within(options.work, place),
                    "--work {}: is inside the {}; choose another directory", options.work.string(),
                    name);
  }
}

// Coded blocks of the same layers in one line.
void log_coded(const std::vector<CodedReport>& blocks) {
  for (auto block = blocks.begin(); block != blocks.end();) {
    CodedReport sum = *block;
    int gains = block->gain;
    for (++block; block != blocks.end() && block->first_layer == sum.first_layer; ++block) {
      sum.coefficients += block->coefficients;
      sum.bits += block->bits;
      gains += block->gain;
      sum.energy += block->energy;
      sum.predicted_error += block->predicted_error;
      sum.measured_error += block->measured_error;
      sum.bytes_per_token += block->bytes_per_token;
      sum.bytes_per_token_plain += block->bytes_per_token_plain;
    }
    log_info(fmt::format(
        "{}: {} coefficients, {} bits and {} gain bytes per token; error {:.3g} predicted and "
        "{:.3g} measured, {:.3g} if all were dropped; {:.1f} of {:.0f} bytes per token",
        to_string(LayerRange{sum.first_layer, sum.num_layers}), sum.coefficients, sum.bits, gains,
        sum.predicted_error, sum.measured_error, sum.energy, sum.bytes_per_token,
        sum.bytes_per_token_plain));
  }
}

// What each part keeps, and how far its keys and values are from the originals on calibration text.
void log_report(const Conversion& converted) {
  log_coded(converted.coded);
  for (const FusedReport& layer : converted.fused) {
    log_info(fmt::format("layer {}{}: R^2 of keys {:.3f}, of values {:.3f}", layer.layer,
                         layer.stays_plain ? " (stays plain)" : "", layer.key_r2, layer.value_r2));
  }
  if (!converted.distillation.is_null()) {
    log_info(fmt::format("distillation: {}", converted.distillation.dump()));
  }
  for (const GroupReport& group : converted.report) {
    const std::string layers = to_string(LayerRange{group.first_layer, group.num_layers});
    if (converted.plan.request) {
      log_info(fmt::format(
          "group {} ({}): {} directions of each request, {:.0f} of {:.0f} bytes per compressed "
          "token",
          group.group, layers, group.rank, group.bytes_per_token_merged,
          group.bytes_per_token_plain));
      continue;
    }
    const std::string of_merged =
        converted.plan.compression.rule == MergeRule::kNone
            ? ""
            : fmt::format(" (merged {:.4f} and {:.4f}), {:.0f} of {:.0f} bytes per merged token",
                          group.merged_key_error, group.merged_value_error,
                          group.bytes_per_token_merged, group.bytes_per_token_plain);
    log_info(fmt::format(
        "group {} ({}): rank {}, energy kept {:.4f}, relative error of keys {:.4f} and values "
        "{:.4f}{}",
        group.group, layers, group.rank, group.energy_kept, group.key_error, group.value_error,
        of_merged));
  }
}

// For the factors as they were written; none of folded ones, which save nothing.
std::optional<Payback> measured_payback(const PipelineOptions& options, const Original& original,
                                        const KvPlan& plan, const fs::path& exported) {
  if (options.format == ExportFormat::kFolded) {
    return std::nullopt;
  }
  return plan_payback(plan, original.config, options.settings,
                      factor_bytes(Checkpoint::open(exported), original.checkpoint));
}

void print_result(const PipelineOptions& options, const std::optional<ValidationReport>& report,
                  const std::optional<Payback>& gain) {
  if (options.json) {
    const Json result = {{"out", options.out.string()},
                         {"validation", report ? to_json(*report) : Json(nullptr)},
                         {"payback", gain ? to_json(*gain) : Json(nullptr)}};
    std::fputs(dump_json(result).c_str(), stdout);
    return;
  }
  if (report) {
    fmt::print("{}", summary_lines(*report));
  } else if (gain) {
    fmt::print("{}\n", to_text(*gain));
  }
  log_info(fmt::format("wrote {}", options.out.string()));
}

ValidateOptions validation_options(const PipelineOptions& options) {
  ValidateOptions validation;
  validation.reference = options.checkpoint;
  validation.texts = options.validation_text;
  validation.seed = options.settings.seed;
  validation.kv_dtype = options.settings.kv_dtype;
  validation.by_part = options.by_part;
  return validation;
}

void convert_and_export(const PipelineOptions& options, const Original& original,
                        const KvPlan& plan, const WorkDirectory& work, OutputDirectory& output) {
  const TokenSet tokens = prepare_tokens(options, original, work.path());
  if (options.validate) {  // what validation would refuse is known before the work
    check_evaluation_text(validation_options(options), original.config, tokens.source_hashes);
  }
  const Outcome outcome =
      convert_into(options, original, plan, tokens, StagePaths::all_in(work.path()), output.path());
  if (outcome.report) {
    write_file(output.path() / "report.json", dump_json(to_json(*outcome.report)));
    write_file(output.path() / "report.html", html_report(*outcome.report));
    const auto model_type = original.checkpoint.config().at("model_type").get<std::string>();
    const ModelCard card{
        .checkpoint = original.checkpoint,
        .command = options.command,
        .format = options.format,
        .kv_dtype = options.settings.kv_dtype,
        .vllm_serves = vllm_serves(options.settings, outcome.conversion.plan, model_type)};
    write_file(output.path() / "README.md",
               model_card(card, outcome.conversion.plan, *outcome.report));
  }
  output.commit();
  log_report(outcome.conversion);
  print_result(options, outcome.report, outcome.payback);
}

// What was asked for and the plan does not give.
void log_limits(const PipelineOptions& options, const KvPlan& plan, const ModelConfig& config) {
  // coded says so once its bits are shared out.
  if (!options.open.kept_ratio && plan.coded.empty()) {
    if (const std::string note = unmet_target_note(plan, config, options.settings); !note.empty()) {
      log_info(note);
    }
  }
  const std::string late =
      options.plan_only  // has it in its table
          ? ""
          : late_payback_note(estimated_payback(plan, config, options.settings),
                              tokens_in_flight(config, options.settings));
  if (!late.empty()) {
    log_info(late);
  }
  for (const std::string& limit : serving_limits(options.engine, plan)) {
    log_info(limit);
  }
}

}  // namespace

ValidationReport validate_export(const PipelineOptions& options, const fs::path& exported,
                                 const StagePaths& paths) {
  ValidateOptions validation = validation_options(options);
  validation.candidate = exported;
  validation.calibration_tokens = paths.tokens / "tokens.h5";
  validation.reference_logits = paths.reference;
  ValidationReport report = validate(validation);
  report.options["candidate"] = options.out.string();
  return report;
}

Outcome convert_into(const PipelineOptions& options, const Original& original, const KvPlan& plan,
                     const TokenSet& tokens, const StagePaths& paths, const fs::path& directory) {
  const fs::path conversion = run_stages(options, original, plan, tokens, paths);
  Outcome outcome{.conversion = read_conversion(conversion)};
  check_fits(outcome.conversion.fused, options.settings);  // an earlier run may have used --force
  ExportOptions exporting;
  exporting.checkpoint = options.checkpoint;
  exporting.conversion = conversion;
  exporting.format = options.format;
  exporting.factor_dtype = options.factor_dtype;
  export_into(exporting, directory);

  const fs::path exported =
      options.format == ExportFormat::kBoth ? directory / "factored" : directory;
  outcome.payback = measured_payback(options, original, outcome.conversion.plan, exported);
  if (options.validate) {
    outcome.report = validate_export(options, exported, paths);
    outcome.report->payback = outcome.payback;
  }
  return outcome;
}

Original open_original(const PipelineOptions& options) {
  Checkpoint checkpoint = options.plan_only ? Checkpoint::open_config_only(options.checkpoint)
                                            : Checkpoint::open(options.checkpoint);
  check_original(checkpoint);
  if (!options.plan_only) {
    check_companion_files(checkpoint);
  }
  ModelConfig config =
      options.plan_only ? read_model_config(checkpoint) : read_checked_model_config(checkpoint);
  return {std::move(checkpoint), std::move(config)};
}

void choose_settings(PipelineOptions& options, const Original& original) {
  resolve(options.settings);
  const auto model_type = original.checkpoint.config().at("model_type").get<std::string>();
  check_served(options.engine, options.settings, model_type);
  for (const std::string& choice :
       choose_defaults(original.config, options.open, options.settings)) {
    log_info(choice);
  }
  const std::int64_t context = original.config.max_position_embeddings;
  if (options.effort.seq_len > context) {
    log_info(fmt::format("--seq-len {}: calibration texts have {} tokens, the model's context",
                         options.effort.seq_len, context));
    options.effort.seq_len = context;
  }
  if (options.settings.context > context) {
    log_info(
        fmt::format("--context {}: the model reads at most {} tokens, and texts so short save less",
                    options.settings.context, context));
  }
}

KvPlan plan_conversion(const PipelineOptions& options, const ModelConfig& config) {
  KvPlan plan = make_plan(config, options.settings, options.force);
  check_exportable(plan, options.format);
  log_limits(options, plan, config);
  return plan;
}

void settle_output(PipelineOptions& options, const std::string& ending) {
  if (options.out.empty()) {
    const std::string name = fs::canonical(options.checkpoint).filename().string();
    options.out = fs::current_path() / (name + "-" + ending);
  }
  options.out = output_path(fs::absolute(options.out));
  check_output(options.out, options.force);
  check_inputs_apart(options);
}

void run_pipeline(PipelineOptions options) {
  const Original original = open_original(options);
  choose_settings(options, original);
  if (options.plan_only) {
    const PlanTable table =
        plan_table(original.config, options.settings, options.force, options.effort);
    check_exportable(table.plan, options.format);
    log_limits(options, table.plan, original.config);
    std::fputs((options.json ? dump_json(to_json(table)) : to_text(table)).c_str(), stdout);
    return;
  }
  const KvPlan plan = plan_conversion(options, original.config);  // refuses before any work is done
  settle_output(options, options.settings.method);
  OutputDirectory output(options.out, options.force);  // the lock comes before the work directory
  WorkDirectory work(options.work, options.out);
  work.run([&] { convert_and_export(options, original, plan, work, output); });
}

}  // namespace kvc
