#include "export/export.h"

#include "core/conversion_file.h"
#include "core/enum_names.h"
#include "core/error.h"
#include "core/factor_checksum.h"
#include "core/output.h"
#include "core/payback.h"
#include "core/progress.h"
#include "export/export_config.h"
#include "export/factor_file.h"
#include "export/tensor_sources.h"
#include "model/config.h"
#include "model/unused_tensors.h"
#include "model/weights.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr EnumName<ExportFormat> kFormats[] = {{ExportFormat::kFactored, "factored"},
                                               {ExportFormat::kFolded, "folded"},
                                               {ExportFormat::kBoth, "both"},
                                               {ExportFormat::kMla, "mla"}};

// What both formats are made from, checked to belong together.
struct Inputs {
  Checkpoint checkpoint;
  ModelConfig config;
  Conversion conversion;
  FactorFile factors;
};

void check_plan(const KvPlan& plan, const ModelConfig& config, const fs::path& conversion) {
  plan.check();
  KVC_CHECK(plan.num_layers() == config.num_layers && plan.num_kv_heads == config.num_kv_heads &&
                plan.head_dim == config.head_dim,
            "{}: the plan is for {} layers with {} KV heads of {}, the checkpoint has {} layers "
            "with {} KV heads of {}; convert this checkpoint",
            conversion.string(), plan.num_layers(), plan.num_kv_heads, plan.head_dim,
            config.num_layers, config.num_kv_heads, config.head_dim);
}

Inputs open_inputs(const ExportOptions& options) {
  Checkpoint checkpoint = Checkpoint::open(options.checkpoint);
  check_original(checkpoint);
  check_companion_files(checkpoint);
  ModelConfig config = read_model_config(checkpoint);
  Conversion conversion = read_conversion(options.conversion);
  check_provenance(conversion.provenance, "conversion", checkpoint.hash(), options.conversion);
  check_plan(conversion.plan, config, options.conversion);
  check_exportable(conversion.plan, options.format);
  FactorFile factors(conversion.tensors, conversion.plan, config.hidden_size);
  check_conversion_tensors(conversion);
  return {std::move(checkpoint), std::move(config), std::move(conversion), std::move(factors)};
}

void write_factored(const Inputs& inputs, const std::string& factor_dtype,
                    const fs::path& directory) {
  check_tensors(inputs.checkpoint, inputs.config);
  write_checkpoint_tensors(
      directory, factored_tensors(inputs.checkpoint, inputs.config, inputs.conversion.plan,
                                  inputs.factors, factor_dtype, directory));
  Json config = factored_config(inputs.checkpoint, inputs.config, inputs.conversion, factor_dtype);
  const fs::path file = directory / "config.json";
  write_file(file, dump_json(config));
  config["kvconvert"][kFactorChecksum] = factor_checksum(Checkpoint::open(directory));
  fs::remove(file);
  write_file(file, dump_json(config));
  copy_companion_files(inputs.checkpoint, directory, true);
}

// Tensors beside the text model go into the export as they are.
void log_carried(const Inputs& inputs) {
  const std::vector<std::string> carried = unused_tensors(inputs.checkpoint, inputs.config).carried;
  if (!carried.empty()) {
    log_info(fmt::format("{} tensors are not part of the text model and are copied unchanged: {}",
                         carried.size(), listed(carried)));
  }
}

void write_folded(const Inputs& inputs, const fs::path& directory) {
  write_checkpoint_tensors(directory, folded_tensors(inputs.checkpoint, inputs.config,
                                                     inputs.conversion.plan, inputs.factors));
  write_folded_config(inputs.checkpoint, directory);
  copy_companion_files(inputs.checkpoint, directory, false);
}

}  // namespace

ExportFormat parse_export_format(const std::string& name) {
  for (const auto& [format, word] : kFormats) {
    if (name == word) {
      return format;
    }
  }
  fail_usage("--export {}: expected factored, folded, both or mla", name);
}

void check_original(const Checkpoint& checkpoint) {
  KVC_CHECK(!checkpoint.config().contains("kvconvert"),
            "{}: already a converted checkpoint; give the original",
            checkpoint.directory().string());
}

void check_exportable(const KvPlan& plan, ExportFormat format) {
  if (format == ExportFormat::kFactored || format == ExportFormat::kMla) {
    return;
  }
  const std::string given = name_of(kFormats, format);
  KVC_CHECK(plan.coded.empty(),
            "--export {}: coded caches quantise keys and values when they are stored, which "
            "projection weights cannot express; use --export factored",
            given);
  KVC_CHECK(plan.fused.empty(),
            "--export {}: fused layers have no projections that a dense weight could replace; use "
            "--export factored",
            given);
  KVC_CHECK(has_basis(plan, LatentBasis::kWeights),
            "--export {}: the method {} does not factorise projections of this model, so there is "
            "nothing to fold; use --export factored",
            given, plan.method);
}

void export_into(const ExportOptions& options, const fs::path& directory) {
  KVC_CHECK_USAGE(
      options.format != ExportFormat::kMla,
      "--export mla: is fitted to calibration text and judged beside a coded cache, not made of a "
      "conversion; use kvconvert --export mla");
  check_factor_dtype(options.factor_dtype);
  const Inputs inputs = open_inputs(options);
  log_carried(inputs);
  switch (options.format) {
    case ExportFormat::kFactored:
      write_factored(inputs, options.factor_dtype, directory);
      break;
    case ExportFormat::kFolded:
      write_folded(inputs, directory);
      break;
    case ExportFormat::kMla:
      break;  // refused above
    case ExportFormat::kBoth:
      for (const char* name : {"factored", "folded"}) {
        fs::create_directory(directory / name);
      }
      write_factored(inputs, options.factor_dtype, directory / "factored");
      write_folded(inputs, directory / "folded");
      break;
  }
}

void export_checkpoint(const ExportOptions& options) {
  check_output(options.out, options.force);
  check_apart(options.out, options.checkpoint);
  check_apart(options.out, options.conversion);
  OutputDirectory output(options.out, options.force);
  export_into(options, output.path());
  output.commit();
  log_info(fmt::format("wrote {}", options.out.string()));
}

Json export_summary(const ExportOptions& options) {
  Json summary = {{"out", options.out.string()}, {"format", name_of(kFormats, options.format)}};
  if (options.format != ExportFormat::kFolded) {
    const Checkpoint factored = Checkpoint::open(
        options.format == ExportFormat::kBoth ? options.out / "factored" : options.out);
    summary["factor_dtype"] = options.factor_dtype;
    summary["factor_bytes"] = factor_bytes(factored, Checkpoint::open(options.checkpoint));
    summary[kFactorChecksum] = factored.config().at("kvconvert").at(kFactorChecksum);
  }
  return summary;
}

}  // namespace kvc
