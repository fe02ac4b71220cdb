#include <memory>

#include "calibrate/calibrate.h"
#include "calibrate/covariance.h"
#include "core/error.h"
#include "model/statistics_program.h"

namespace {

struct Flags {
  bool covariance = false;
  kvc::CovarianceOptions options;

  const kvc::CovarianceOptions& checked() const {
    KVC_CHECK_USAGE(options.joint.layers_per_group >= 1, "--group {}: expected at least 1 layer",
                    options.joint.layers_per_group);
    KVC_CHECK_USAGE(options.joint.sink_tokens >= 0, "--sink {}: expected 0 or more",
                    options.joint.sink_tokens);
    return options;
  }

  void declare(CLI::App& app) {
    app.add_flag("--covariance", covariance,
                 "Instead: the covariance of stacked keys and values, for coded caches");
    app.add_option("--group", options.joint.layers_per_group,
                   "Adjacent layers that --covariance stacks")
        ->capture_default_str();
    app.add_option("--sink", options.joint.sink_tokens,
                   "First tokens of every sequence that --covariance leaves out")
        ->capture_default_str();
    app.add_flag("--attention", options.attention, "With --covariance: the attention metric too");
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto flags = std::make_shared<Flags>();
  return kvc::run_statistics_program(
      argc, argv,
      {.description =
           "Sums statistics of a checkpoint's projection inputs, keys and values over calibration "
           "text.",
       .artifact = "calibration.h5",
       .compute =
           [flags](const auto& checkpoint, const auto& tokens, const auto& out, bool force) {
             if (flags->covariance) {
               kvc::covariance(checkpoint, tokens, flags->checked(), out, force);
             } else {
               kvc::calibrate(checkpoint, tokens, out, force);
             }
           },
       .add =
           [flags](const auto& files, const auto& out, bool force) {
             (flags->covariance ? kvc::add_covariances : kvc::add_calibrations)(files, out, force);
           },
       .summary =
           [flags](const auto& path) {
             return (flags->covariance ? kvc::covariance_summary : kvc::calibration_summary)(path);
           },
       .declare = [flags](CLI::App& app, const kvc::CommonOptions&) { flags->declare(app); }});
}
