#include "convert/pipeline_mla.h"

#include <cstdio>
#include <utility>

#include "calibrate/covariance.h"
#include "convert/model_card.h"
#include "convert/work_directory.h"
#include "core/error.h"
#include "core/output.h"
#include "core/progress.h"
#include "export/mla/mla_export.h"
#include "model/cache_plan.h"
#include "validate/report.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

// One layer at a time, the first tokens too: the layout keeps no token as it is.
constexpr CovarianceOptions kStatistics{.joint = {.layers_per_group = 1, .sink_tokens = 0},
                                        .reach = true};

struct Verdict {
  ValidationReport mla, coded;

  double excess() const {
    return mla.continuation.kl_divergence.mean - coded.continuation.kl_divergence.mean;
  }
};

fs::path measure_attention(const PipelineOptions& options, const Original& original,
                           const TokenSet& tokens, const fs::path& work) {
  const ComputePlace place = statistics_place(options.settings.device);
  fs::path file = work / "attention.h5";
  if (artifact_matches(file,
                       covariance_provenance(original.checkpoint, tokens, kStatistics, place))) {
    log_info("attention's statistics: reused from an earlier run");
  } else {
    covariance(original.checkpoint, tokens, kStatistics, file, true, place);
  }
  return file;
}

// The coded conversion of as many bytes, which leaves nothing behind but its stages in the work directory.
ValidationReport judge_coded(const PipelineOptions& options, const Original& original,
                             const KvPlan& plan, const TokenSet& tokens, const StagePaths& paths,
                             const fs::path& work) {
  PipelineOptions coded = options;
  coded.format = ExportFormat::kFactored;
  const fs::path directory = work / "coded";
  fs::remove_all(directory);
  fs::create_directory(directory);
  Outcome outcome = convert_into(coded, original, plan, tokens, paths, directory);
  fs::remove_all(directory);
  return std::move(*outcome.report);
}

std::string verdict_line(const Verdict& verdict) {
  const auto of = [](const ValidationReport& report) {
    return fmt::format("KLD {:.4g} at kept_ratio {:.3f}", report.continuation.kl_divergence.mean,
                       report.kept_ratio);
  };
  return fmt::format("mla: {}; coded: {}", of(verdict.mla), of(verdict.coded));
}

void check_verdict(const PipelineOptions& options, const Verdict& verdict) {
  if (verdict.excess() <= options.mla_allowed) {
    return;
  }
  throw Error(
      fmt::format(
          "{}: --export mla costs more than allowed: {}; {:.4g} more, --mla-allowed "
          "{:g}. Allow more with --mla-allowed {:.2g}, keep more with --kept-ratio, "
          "or leave --export out, which converts to coded; runs with one --work DIR measure once",
          options.checkpoint.string(), verdict_line(verdict), verdict.excess(), options.mla_allowed,
          verdict.excess() * 1.05),
      ExitCode::kThresholdMissed);
}

void write_report(const PipelineOptions& options, const Original& original, const Verdict& verdict,
                  const fs::path& directory) {
  Json report = to_json(verdict.mla);
  report["coded"] = to_json(verdict.coded);
  write_file(directory / "report.json", dump_json(report));
  write_file(directory / "report.html", html_report(verdict.mla));
  KvPlan plan = plain_plan(original.config);
  plan.method = "mla";
  const ModelCard card{
      .checkpoint = original.checkpoint, .command = options.command, .format = options.format};
  write_file(directory / "README.md", model_card(card, plan, verdict.mla));
}

void print_result(const PipelineOptions& options, const Verdict& verdict) {
  if (options.json) {
    const Json result = {{"out", options.out.string()},
                         {"validation", to_json(verdict.mla)},
                         {"coded", to_json(verdict.coded)}};
    std::fputs(dump_json(result).c_str(), stdout);
  } else {
    fmt::print("{}{}\n", summary_lines(verdict.mla), verdict_line(verdict));
  }
  log_info(fmt::format("wrote {}", options.out.string()));
}

void convert_and_judge(const PipelineOptions& options, const Original& original,
                       const KvPlan& coded_plan, const WorkDirectory& work,
                       OutputDirectory& output) {
  StagePaths paths = StagePaths::all_in(work.path());
  paths.reference = work.path() / "reference";
  fs::create_directories(paths.reference);
  const TokenSet tokens = prepare_tokens(options, original, work.path());
  export_mla_into({.checkpoint = options.checkpoint,
                   .covariance = measure_attention(options, original, tokens, work.path()),
                   .kept_ratio = options.settings.kept_ratio},
                  output.path());
  const Verdict verdict{
      .mla = validate_export(options, output.path(), paths),
      .coded = judge_coded(options, original, coded_plan, tokens, paths, work.path())};
  check_verdict(options, verdict);
  write_report(options, original, verdict, output.path());
  output.commit();
  print_result(options, verdict);
}

}  // namespace

void run_mla_pipeline(PipelineOptions options) {
  KVC_CHECK_USAGE(
      !options.plan_only,
      "--plan: the sizes of --export mla follow from calibration text; leave --plan out");
  KVC_CHECK_USAGE(options.validate,
                  "--no-validate: --export mla is written only after its evaluation; leave "
                  "--no-validate out");
  const Original original = open_original(options);
  check_mla_source(original.config, original.checkpoint.directory().string());
  choose_settings(options, original);
  PipelineOptions coded = options;
  coded.format = ExportFormat::kFactored;
  const KvPlan coded_plan = plan_conversion(coded, original.config);
  mla_shapes(original.config, options.settings.kept_ratio);  // refuses before any work is done
  settle_output(options, "mla");
  OutputDirectory output(options.out, options.force);
  WorkDirectory work(options.work, options.out);
  work.run([&] { convert_and_judge(options, original, coded_plan, work, output); });
}

}  // namespace kvc
