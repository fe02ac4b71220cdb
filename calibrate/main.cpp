#include <memory>

#include "calibrate/analysis.h"
#include "calibrate/calibrate.h"
#include "calibrate/covariance.h"
#include "core/error.h"
#include "model/statistics_program.h"

namespace kvc {
namespace {

using Files = std::vector<std::filesystem::path>;

// What the program computes: sums for factorisations, or one of the others instead.
struct Flags {
  bool covariance = false, analysis = false;
  CovarianceOptions covariance_options;
  AnalysisOptions analysis_options;

  void declare(CLI::App& app) {
    JointOptions& joint = covariance_options.joint;
    CLI::Option* stack = app.add_flag("--covariance", covariance,
                                      "Compute the covariance of stacked keys and values instead "
                                      "(for coded, pca and xkv-static)");
    app.add_option("--group", joint.layers_per_group, "Adjacent layers that --covariance stacks")
        ->capture_default_str()
        ->needs(stack);
    app.add_option("--sink", joint.sink_tokens,
                   "First tokens of every sequence that --covariance skips")
        ->capture_default_str()
        ->needs(stack);
    app.add_flag("--attention", covariance_options.attention,
                 "With --covariance: also the attention metric")
        ->needs(stack);
    CLI::Option* analyze =
        app.add_flag("--analyze", analysis,
                     "Measure the similarity of all layers' hidden states, keys and values "
                     "instead, on the CPU; --out is a directory (HDF5 and heat maps)")
            ->excludes(stack);
    app.add_option("--sample", analysis_options.num_tokens, "Tokens that --analyze reads")
        ->capture_default_str()
        ->needs(analyze);
    app.add_option("--conversion", analysis_options.conversion,
                   "With --analyze: also the latents of this conversion's groups")
        ->needs(analyze);
  }

  void check(const CommonOptions& common) const {
    if (analysis) {
      require_cpu(common);
    }
    KVC_CHECK_USAGE(covariance_options.joint.layers_per_group >= 1,
                    "--group {}: expected at least 1 layer",
                    covariance_options.joint.layers_per_group);
    KVC_CHECK_USAGE(covariance_options.joint.sink_tokens >= 0, "--sink {}: expected 0 or more",
                    covariance_options.joint.sink_tokens);
  }

  void compute(const Checkpoint& checkpoint, const TokenSet& tokens,
               const std::filesystem::path& out, bool force, const ComputePlace& place) const {
    if (analysis) {
      analyze(checkpoint, tokens, analysis_options, out, force);
    } else if (covariance) {
      kvc::covariance(checkpoint, tokens, covariance_options, out, force, place);
    } else {
      calibrate(checkpoint, tokens, out, force, place);
    }
  }

  void add(const Files& files, const std::filesystem::path& out, bool force) const {
    KVC_CHECK_USAGE(!analysis, "--add: similarities do not add up; run --analyze on all text");
    (covariance ? add_covariances : add_calibrations)(files, out, force);
  }

  Json summary(const std::filesystem::path& out) const {
    return analysis ? analysis_summary(out)
                    : (covariance ? covariance_summary : calibration_summary)(out);
  }
};

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  const auto flags = std::make_shared<kvc::Flags>();
  return kvc::run_statistics_program(
      argc, argv,
      {.description =
           "Computes statistics of projection inputs, keys and values over calibration text.",
       .artifact = "calibration.h5",
       .compute = [flags](const auto&... arguments) { flags->compute(arguments...); },
       .add = [flags](const auto&... arguments) { flags->add(arguments...); },
       .summary = [flags](const auto& path) { return flags->summary(path); },
       .takes_own_latents = [flags] { return flags->covariance; },
       .declare = [flags](CLI::App& app, const kvc::CommonOptions&) { flags->declare(app); },
       .inputs =
           [flags] {
             const std::filesystem::path& conversion = flags->analysis_options.conversion;
             return conversion.empty() ? kvc::Files() : kvc::Files{conversion};
           },
       .check = [flags](const kvc::CommonOptions& common) { flags->check(common); }});
}
