#include "core/conversion_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <span>
#include <type_traits>
#include <utility>
#include <vector>

#include "core/checksum.h"
#include "core/error.h"
#include "core/interrupt.h"
#include "core/json_fields.h"
#include "core/kv_plan_json.h"
#include "core/mapped_file.h"
#include "core/safetensors.h"

namespace kvc {
namespace {

constexpr const char* kFileName = "conversion.h5";
constexpr const char* kTensorsName = "conversion.safetensors";
constexpr const char* kChecksumPath = "/tensors_checksum";

// The scalar columns of the report, one dataset each.
struct Column {
  const char* name;
  double GroupReport::*value;
};
constexpr Column kColumns[] = {
    {"energy_kept", &GroupReport::energy_kept},
    {"optimum_error", &GroupReport::optimum_error},
    {"pivot_condition", &GroupReport::pivot_condition},
    {"key_error", &GroupReport::key_error},
    {"value_error", &GroupReport::value_error},
    {"merged_key_error", &GroupReport::merged_key_error},
    {"merged_value_error", &GroupReport::merged_value_error},
    {"bytes_per_token_plain", &GroupReport::bytes_per_token_plain},
    {"bytes_per_token_merged", &GroupReport::bytes_per_token_merged},
};

std::string group_path(std::size_t group, const char* name) {
  return fmt::format("/groups/{}/{}", group, name);
}

void write_report(Hdf5Writer& file, const std::vector<GroupReport>& report) {
  const auto count = static_cast<std::int64_t>(report.size());
  std::vector<std::int64_t> first_layer, num_layers, rank;
  for (const GroupReport& group : report) {
    first_layer.push_back(group.first_layer);
    num_layers.push_back(group.num_layers);
    rank.push_back(group.rank);
  }
  file.dataset("/report/first_layer", first_layer, {count}, {"group"});
  file.dataset("/report/num_layers", num_layers, {count}, {"group"});
  file.dataset("/report/rank", rank, {count}, {"group"});
  for (const Column& column : kColumns) {
    std::vector<double> values;
    for (const GroupReport& group : report) {
      values.push_back(group.*column.value);
    }
    file.dataset(std::string("/report/") + column.name, values, {count}, {"group"});
  }
  for (std::size_t i = 0; i < report.size(); ++i) {
    const std::vector<double>& values = report[i].singular_values;
    file.dataset(group_path(i, "singular_values"), values,
                 {static_cast<std::int64_t>(values.size())}, {"component"});
  }
}

std::vector<GroupReport> read_report(const Hdf5Reader& file, std::int64_t count) {
  std::vector<GroupReport> report(static_cast<std::size_t>(count));
  const std::vector<std::int64_t> first_layer = file.ints("/report/first_layer", {count});
  const std::vector<std::int64_t> num_layers = file.ints("/report/num_layers", {count});
  const std::vector<std::int64_t> rank = file.ints("/report/rank", {count});
  for (std::size_t i = 0; i < report.size(); ++i) {
    report[i].group = static_cast<int>(i);
    report[i].first_layer = static_cast<int>(first_layer[i]);
    report[i].num_layers = static_cast<int>(num_layers[i]);
    report[i].rank = rank[i];
    const std::string path = group_path(i, "singular_values");
    report[i].singular_values = file.doubles(path, file.shape(path));
  }
  for (const Column& column : kColumns) {
    const std::vector<double> values = file.doubles(std::string("/report/") + column.name, {count});
    for (std::size_t i = 0; i < report.size(); ++i) {
      report[i].*column.value = values[i];
    }
  }
  return report;
}

// A checksum over those of the header and of each tensor, 16 digits.
std::string tensors_checksum(const std::filesystem::path& path) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  std::vector<std::uint64_t> sums = {checksum_of(std::as_bytes(std::span(file.header())))};
  for (const TensorInfo& tensor : file.tensors()) {
    check_interrupt();
    const std::span<const std::byte> bytes = file.bytes(tensor);
    sums.push_back(checksum_of(bytes));
    release_pages(bytes);
  }
  return fmt::format("{:016x}", checksum_of(std::as_bytes(std::span(sums))));
}

// Nothing where no layer was fused.
void write_fused(Hdf5Writer& file, const std::vector<FusedReport>& fused) {
  Json json = Json::array();
  for (const FusedReport& layer : fused) {
    json.push_back(to_json(layer));
  }
  if (!fused.empty()) {
    file.dataset("/fused", dump_json(json));
  }
}

FusedReport fused_report_from_json(const Json& json, const std::string& subject) {
  JsonFields fields(json, subject);
  FusedReport report;
  fields.read("layer", report.layer);
  const auto r2 = [&](const char* name) {  // JSON has no -infinity: null
    const Json& value = fields.at(name);
    KVC_CHECK(value.is_number() || value.is_null(), "{}: \"{}\" must be a number, found {}",
              subject, name, excerpt(value));
    return value.is_null() ? -std::numeric_limits<double>::infinity() : value.get<double>();
  };
  report.key_r2 = r2("key_r2");
  report.value_r2 = r2("value_r2");
  fields.read("stays_plain", report.stays_plain);
  fields.done();
  return report;
}

// The JSON in a dataset that files need not have; null there.
Json optional_json(const Hdf5Reader& file, const std::string& path) {
  const std::vector<std::string> names = file.children("/");
  return std::find(names.begin(), names.end(), path.substr(1)) == names.end()
             ? Json()
             : parse_json(file.text(path), file.path().string() + ":" + path);
}

// Likewise of coded blocks, below /coded/.
struct CodedColumn {
  const char* name;
  double (*get)(const CodedReport&);
  void (*set)(CodedReport&, double);
  bool is_whole;  // small whole numbers
};
template <auto Member>
constexpr CodedColumn coded_column(const char* name) {
  return {
      name, [](const CodedReport& report) { return static_cast<double>(report.*Member); },
      [](CodedReport& report, double value) {
        report.*Member = static_cast<std::remove_reference_t<decltype(report.*Member)>>(value);
      },
      std::is_integral_v<std::remove_reference_t<decltype(std::declval<CodedReport>().*Member)>>};
}
constexpr CodedColumn kCodedColumns[] = {
    coded_column<&CodedReport::first_layer>("first_layer"),
    coded_column<&CodedReport::num_layers>("num_layers"),
    coded_column<&CodedReport::head>("head"),
    coded_column<&CodedReport::coefficients>("coefficients"),
    coded_column<&CodedReport::bits>("bits"),
    coded_column<&CodedReport::gain>("gain"),
    coded_column<&CodedReport::energy>("energy"),
    coded_column<&CodedReport::predicted_error>("predicted_error"),
    coded_column<&CodedReport::measured_error>("measured_error"),
    coded_column<&CodedReport::bytes_per_token_plain>("bytes_per_token_plain"),
    coded_column<&CodedReport::bytes_per_token>("bytes_per_token"),
};

void write_coded(Hdf5Writer& file, const std::vector<CodedReport>& report) {
  if (report.empty()) {
    return;
  }
  for (const CodedColumn& column : kCodedColumns) {
    std::vector<double> values;
    for (const CodedReport& block : report) {
      values.push_back(column.get(block));
    }
    file.dataset(std::string("/coded/") + column.name, values,
                 {static_cast<std::int64_t>(values.size())}, {"block"});
  }
}

std::vector<CodedReport> read_coded(const Hdf5Reader& file, std::int64_t count) {
  std::vector<CodedReport> report(static_cast<std::size_t>(count));
  for (const CodedColumn& column : kCodedColumns) {
    const std::string path = std::string("/coded/") + column.name;
    const std::vector<double> values = file.doubles(path, {count});
    for (std::size_t i = 0; i < report.size(); ++i) {
      KVC_CHECK(!column.is_whole || std::abs(values[i]) < 0x1p31, "{}:{}: holds {}",
                file.path().string(), path, values[i]);
      column.set(report[i], values[i]);
    }
  }
  return report;
}

}  // namespace

Json to_json(const FusedReport& report) {
  return {{"layer", report.layer},
          {"key_r2", report.key_r2},
          {"value_r2", report.value_r2},
          {"stays_plain", report.stays_plain}};
}

Json to_json(const GroupReport& report) {
  Json json;
  json["group"] = report.group;
  json["first_layer"] = report.first_layer;
  json["num_layers"] = report.num_layers;
  json["rank"] = report.rank;
  for (const Column& column : kColumns) {
    json[column.name] = report.*column.value;
  }
  return json;
}

Json to_json(const CodedReport& report) {
  return {{"first_layer", report.first_layer},
          {"num_layers", report.num_layers},
          {"head", report.head < 0 ? Json(nullptr) : Json(report.head)},
          {"coefficients", report.coefficients},
          {"bits", report.bits},
          {"gain", report.gain},
          {"energy", report.energy},
          {"predicted_error", report.predicted_error},
          {"measured_error", report.measured_error},
          {"bytes_per_token_plain", report.bytes_per_token_plain},
          {"bytes_per_token", report.bytes_per_token}};
}

void write_conversion(const std::filesystem::path& directory, const Conversion& conversion) {
  Hdf5Writer file(directory / kFileName);
  write_provenance(file, conversion.provenance);
  file.dataset("/plan", dump_json(to_json(conversion.plan)));
  file.dataset("/settings", dump_json(conversion.settings));
  file.dataset(kChecksumPath, tensors_checksum(directory / kTensorsName));
  file.dataset("/calibration_hashes", dump_json(Json(conversion.calibration_hashes)));
  write_report(file, conversion.report);
  write_fused(file, conversion.fused);
  if (!conversion.distillation.is_null()) {
    file.dataset("/distillation", dump_json(conversion.distillation));
  }
  write_coded(file, conversion.coded);
  for (std::size_t i = 0; i < conversion.plan.groups.size(); ++i) {
    const std::vector<double>& weights = conversion.plan.groups[i].merge_weights;
    if (!weights.empty()) {
      file.dataset(group_path(i, "merge_weights"), weights,
                   {static_cast<std::int64_t>(weights.size())}, {"layer"});
    }
  }
  file.close();
}

Conversion read_conversion(const std::filesystem::path& path) {
  const bool is_file = path.filename() == kFileName;
  const std::filesystem::path directory = is_file ? path.parent_path() : path;
  KVC_CHECK(
      std::filesystem::is_regular_file(directory / kFileName),
      "{}: no such file; pass the folder `conversion` of a directory that kvconvert --work kept",
      (directory / kFileName).string());
  const Hdf5Reader file(directory / kFileName);
  const std::string subject = file.path().string();
  Conversion conversion;
  conversion.provenance = read_provenance(file);
  KVC_CHECK(conversion.provenance.kind == "conversion",
            "{}: holds \"{}\", expected a conversion; pass the directory that kvconvert's "
            "conversion stage wrote",
            subject, conversion.provenance.kind);
  conversion.plan =
      kv_plan_from_json(parse_json(file.text("/plan"), subject + ":/plan"), subject + ":/plan");
  conversion.settings = parse_json(file.text("/settings"), subject + ":/settings");
  for (const Json& hash :
       parse_json(file.text("/calibration_hashes"), subject + ":/calibration_hashes")) {
    KVC_CHECK(hash.is_string(), "{}:/calibration_hashes: expected strings", subject);
    conversion.calibration_hashes.push_back(hash.get<std::string>());
  }
  conversion.report = read_report(file, static_cast<std::int64_t>(conversion.plan.groups.size()));
  for (const Json& layer : optional_json(file, "/fused")) {
    conversion.fused.push_back(fused_report_from_json(layer, subject + ":/fused"));
  }
  conversion.distillation = optional_json(file, "/distillation");
  if (!conversion.plan.coded.empty()) {
    conversion.coded = read_coded(file, static_cast<std::int64_t>(conversion.plan.coded.size()));
  }
  conversion.tensors = directory / kTensorsName;
  if (file.contains(kChecksumPath)) {
    conversion.tensors_checksum = file.text(kChecksumPath);
  }
  return conversion;
}

void check_conversion_tensors(const Conversion& conversion) {
  KVC_CHECK(conversion.tensors_checksum.empty() ||
                conversion.tensors_checksum == tensors_checksum(conversion.tensors),
            "{}: the tensors are damaged, or belong to another conversion: their checksum differs "
            "from the one in {}; delete the directory and convert again",
            conversion.tensors.string(), kFileName);
}

bool is_whole_conversion(const std::filesystem::path& directory) {
  try {
    const Conversion conversion = read_conversion(directory);
    SafetensorsFile::open(conversion.tensors);
    check_conversion_tensors(conversion);
    return true;
  } catch (const Error&) {
    check_interrupt();  // a signal is no damage
    return false;
  }
}

}  // namespace kvc
