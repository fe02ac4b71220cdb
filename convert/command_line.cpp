#include "convert/command_line.h"

#include <algorithm>
#include <cstdio>
#include <iterator>
#include <memory>
#include <string_view>

#include "convert/conversion_options.h"
#include "convert/given_options.h"
#include "convert/methods/methods.h"
#include "convert/pipeline_mla.h"
#include "convert/sweep/sweep.h"
#include "core/error.h"

namespace kvc {
namespace {

SweepOptions sweep_options(const CLI::App& app, const std::vector<std::string>& words,
                           const std::string& points, const PipelineOptions& options,
                           const CommonOptions& common) {
  for (const char* flag : {"--validate", "--export", "--method", "--by-part"}) {
    KVC_CHECK_USAGE(
        app.count(flag) == 0,
        "{}: does not go with --sweep, whose lines name methods and "
        "are exported factored and evaluated; leave it out",
        flag == std::string_view("--validate") && !options.validate ? "--no-validate" : flag);
  }
  SweepOptions sweep{.base = options,
                     .candidates = sweep_candidates(words, given_options(app),
                                                    options.checkpoint.string(), common),
                     .points = points};
  std::ranges::copy_if(words, std::back_inserter(sweep.line_files), is_line_file);
  return sweep;
}

}  // namespace

Action declare_convert_options(CLI::App& app, CommonOptions& common) {
  const auto options = std::make_shared<ConversionOptions>(app);
  const auto list_models = std::make_shared<bool>(false);
  const auto sweep = std::make_shared<std::vector<std::string>>();
  const auto points = std::make_shared<std::string>();
  app.add_option(
         "--sweep", *sweep,
         "Convert in several ways and report which one to take: \"default\", a line such as "
         "\"coded --form {full,rotated} --kept-ratio {0.5,0.25}\", or a file of lines; repeatable")
      ->allow_extra_args(false);
  app.add_option(
         "--sweep-points", *points,
         "Other caches in the report of --sweep: a JSON file, {name: {\"kept_ratio\", \"kld\", "
         "\"kld_error\"}}, as bench/measure_engine_caches.py --json prints")
      ->needs("--sweep");
  app.add_flag("--list-models", *list_models,
               "Print the model families that each method converts, and stop");
  return [options, list_models, sweep, points, &app, &common] {
    if (*list_models) {
      std::fputs((common.json ? dump_json(support_json()) : support_text()).c_str(), stdout);
    } else if (app.count("--sweep") > 0) {
      run_sweep(sweep_options(app, *sweep, *points, options->resolve(common), common));
    } else {
      const PipelineOptions resolved = options->resolve(common);
      (resolved.format == ExportFormat::kMla ? run_mla_pipeline : run_pipeline)(resolved);
    }
  };
}

}  // namespace kvc
