#include "convert/command_line.h"

#include <cstdio>
#include <memory>

#include "convert/conversion_options.h"
#include "convert/methods/methods.h"

namespace kvc {

Action declare_convert_options(CLI::App& app, CommonOptions& common) {
  const auto options = std::make_shared<ConversionOptions>(app);
  const auto list_models = std::make_shared<bool>(false);
  app.add_flag("--list-models", *list_models,
               "Print the model families that each method converts, and stop");
  return [options, list_models, &common] {
    if (*list_models) {
      std::fputs((common.json ? dump_json(support_json()) : support_text()).c_str(), stdout);
      return;
    }
    run_pipeline(options->resolve(common));
  };
}

}  // namespace kvc
