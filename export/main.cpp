#include <cstdio>
#include <memory>

#include "core/command.h"
#include "export/export.h"

int main(int argc, char** argv) {
  return kvc::run_command(
      argc, argv, "Writes a conversion as a HuggingFace directory, factored or folded.",
      [](CLI::App& app, kvc::CommonOptions& common) -> kvc::Action {
        auto options = std::make_shared<kvc::ExportOptions>();
        auto format = std::make_shared<std::string>("factored");
        app.add_option("checkpoint", options->checkpoint, "HuggingFace directory")->required();
        app.add_option("--conversion", options->conversion,
                       "conversion.h5 of this checkpoint, or the directory that holds it")
            ->required();
        app.add_option("--export", *format, "factored, folded or both")->capture_default_str();
        app.add_option("--out", options->out, "Output directory")->required();
        app.add_option("--factor-dtype", options->factor_dtype,
                       "Dtype of the written factors: auto (the smallest that is accurate enough), "
                       "float32, bfloat16, float16 or int8")
            ->capture_default_str();
        kvc::offer_only_cpu(app);
        return [options, format, &common] {
          kvc::require_cpu(common);
          options->format = kvc::parse_export_format(*format);
          options->force = common.force;
          kvc::export_checkpoint(*options);
          if (common.json) {
            std::fputs(kvc::dump_json(kvc::export_summary(*options)).c_str(), stdout);
          }
        };
      });
}
