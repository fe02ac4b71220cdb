#include "convert/sweep/sweep.h"

#include <algorithm>
#include <cstdio>
#include <optional>

#include "convert/plan.h"
#include "convert/sweep/sweep_measurement.h"
#include "convert/sweep/sweep_points.h"
#include "convert/sweep/sweep_report.h"
#include "convert/work_directory.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/output.h"
#include "core/progress.h"
#include "core/provenance.h"
#include "model/config.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

Json without_result(const SweepCandidate& candidate, const char* status,
                    const std::exception& error) {
  log_info(fmt::format("{}: {}", status, error.what()));
  return {{"name", candidate.name}, {"status", status}, {"reason", error.what()}};
}

Json run_candidates(const SweepOptions& options, const SweepMeasurement& sweep) {
  Json rows = Json::array();
  for (const SweepCandidate& candidate : options.candidates) {
    check_interrupt();
    log_info(fmt::format("sweep: {} of {}: {}", rows.size() + 1, options.candidates.size(),
                         candidate.name));
    std::optional<PlannedCandidate> planned;
    try {
      if (!candidate.plain) {
        planned = sweep.plan(candidate);
      }
    } catch (const Error& error) {
      check_interrupt();
      rows.push_back(without_result(candidate, "refused", error));
      continue;
    }
    try {
      rows.push_back(planned ? sweep.measure(candidate.name, *planned)
                             : sweep.measure_plain(candidate));
      log_info(fmt::format("kept_ratio {:.3f}, KL divergence {}", kept_of(rows.back()),
                           kld_text(rows.back())));
    } catch (const RefusedError& error) {
      rows.push_back(without_result(candidate, "refused", error));
    } catch (const std::exception& error) {  // LibTorch's too, and out of memory
      check_interrupt();
      rows.push_back(without_result(candidate, "failed", error));
    }
  }
  if (sweep.reference_bytes() > 0) {
    log_info(fmt::format("the original's logits took {:.1f} MiB",
                         static_cast<double>(sweep.reference_bytes()) / (1 << 20)));
  }
  return rows;
}

void print_plans(const SweepOptions& options, const SweepMeasurement& sweep,
                 const ModelConfig& config) {
  Json rows = Json::array();
  for (const SweepCandidate& candidate : options.candidates) {
    Json row = {{"name", candidate.name}};
    std::string text = "the original's weights";
    if (!candidate.plain) {
      try {
        const PlannedCandidate planned = sweep.plan(candidate);
        const ConvertSettings& settings = planned.options.settings;
        row["kept_ratio"] = planned_type_scale(planned.plan, config, settings) *
                            planned_kept_ratio(planned.plan, plan_context(config, settings),
                                               planned_dtype(config, settings));
        const Payback payback = estimated_payback(planned.plan, config, settings);
        row["payback"] = to_json(payback);
        text = fmt::format("keeps {:.3f}, {}", row["kept_ratio"].get<double>(), to_text(payback));
      } catch (const Error& error) {
        check_interrupt();
        row["reason"] = error.what();
        text = fmt::format("refused: {}", error.what());
      }
    }
    if (!options.base.json) {
      fmt::print("{}: {}\n", candidate.name, text);
    }
    rows.push_back(std::move(row));
  }
  if (options.base.json) {
    std::fputs(dump_json({{"candidates", rows}}).c_str(), stdout);
  }
}

// Files of lines and points, and texts that lines name.
void check_lines_apart(const SweepOptions& options) {
  const auto check = [&options](const fs::path& file) { check_apart(options.base.out, file); };
  std::ranges::for_each(options.line_files, check);
  if (!options.points.empty()) {
    check(options.points);
  }
  for (const SweepCandidate& candidate : options.candidates) {
    std::ranges::for_each(candidate.options.calibration.files, check);
  }
}

bool is_measured(const Json& row) { return row["status"] == "measured"; }

// About candidates that began and did not end; empty if there are none.
std::string failure_text(const Json& rows) {
  std::size_t failed = 0;
  std::string first;
  for (const Json& row : rows) {
    if (row["status"] == "failed" && failed++ == 0) {
      first =
          fmt::format("{}: {}", row["name"].get<std::string>(), row["reason"].get<std::string>());
    }
  }
  return failed == 0 ? ""
                     : fmt::format("{} of {} candidates failed, the first one {}", failed,
                                   rows.size(), first);
}

}  // namespace

void run_sweep(SweepOptions options) {
  PipelineOptions& base = options.base;
  const Json points = options.points.empty() ? Json::array() : read_sweep_points(options.points);
  const Original original = open_original(base);
  if (base.plan_only) {
    print_plans(options, SweepMeasurement(options, original), original.config);
    return;
  }
  settle_output(base, "sweep");
  check_lines_apart(options);
  OutputDirectory output(base.out, base.force);
  WorkDirectory work(base.work, base.out);
  work.run([&] {
    const Json rows = run_candidates(options, SweepMeasurement(options, original, work.path()));
    const std::string failures = failure_text(rows);
    KVC_CHECK(failures.empty() || std::ranges::any_of(rows, is_measured), "{}", failures);
    const Json result = {{"checkpoint", fs::canonical(base.checkpoint).filename().string()},
                         {"tool_version", kToolVersion},
                         {"seed", base.settings.seed},
                         {"answers", sweep_answers(rows)},
                         {"points", points},
                         {"candidates", rows}};
    write_file(output.path() / "sweep.json", dump_json(result));
    write_file(output.path() / "report.html", sweep_html(result));
    output.commit();
    std::fputs((base.json ? dump_json(result) : sweep_text(result)).c_str(), stdout);
    log_info(fmt::format("wrote {}", base.out.string()));
    KVC_CHECK(failures.empty(), "{}; the others are in {}", failures,
              (base.out / "report.html").string());
  });
}

}  // namespace kvc
