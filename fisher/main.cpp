#include <memory>

#include "core/error.h"
#include "fisher/fisher.h"
#include "fisher/metric.h"
#include "model/statistics_program.h"

namespace {

struct Flags {
  bool metric = false;
  kvc::MetricOptions options;
  const kvc::CommonOptions* common = nullptr;

  kvc::MetricOptions checked() const {
    kvc::MetricOptions checked = options;
    KVC_CHECK_USAGE(checked.joint.layers_per_group >= 1, "--group {}: expected at least 1 layer",
                    checked.joint.layers_per_group);
    KVC_CHECK_USAGE(checked.joint.sink_tokens >= 0, "--sink {}: expected 0 or more",
                    checked.joint.sink_tokens);
    checked.seed = common->seed;
    return checked;
  }
};

}  // namespace

int main(int argc, char** argv) {
  const auto flags = std::make_shared<Flags>();
  return kvc::run_statistics_program(
      argc, argv,
      {.description = "Computes the diagonal Fisher information of key and value projections, or "
                      "with --metric, of cached keys and values.",
       .artifact = "fisher.h5",
       .compute =
           [flags](const auto& checkpoint, const auto& tokens, const auto& out, bool force,
                   const kvc::ComputePlace& place) {
             if (flags->metric) {
               kvc::metric(checkpoint, tokens, flags->checked(), out, force, place);
             } else {
               kvc::fisher(checkpoint, tokens, out, force, place);
             }
           },
       .add =
           [flags](const auto& files, const auto& out, bool force) {
             (flags->metric ? kvc::add_metrics : kvc::add_fishers)(files, out, force);
           },
       .summary =
           [flags](const auto& path) {
             return (flags->metric ? kvc::metric_summary : kvc::fisher_summary)(path);
           },
       .declare =
           [flags](CLI::App& app, const kvc::CommonOptions& common) {
             flags->common = &common;
             CLI::Option* metric =
                 app.add_flag("--metric", flags->metric,
                              "Compute second moments of the gradient with respect to cached keys "
                              "and values instead (for coded, pca and xkv-static)");
             app.add_option("--group", flags->options.joint.layers_per_group,
                            "Adjacent layers that --metric stacks")
                 ->capture_default_str()
                 ->needs(metric);
             app.add_option("--sink", flags->options.joint.sink_tokens,
                            "First tokens of every sequence that --metric skips")
                 ->capture_default_str()
                 ->needs(metric);
           }});
}
