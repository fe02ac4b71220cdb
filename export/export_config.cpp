#include "export/export_config.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <string_view>

#include "core/error.h"
#include "core/kv_plan_json.h"
#include "core/output.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr std::array<std::string_view, 9> kUnsafeKeys = {"_attn_implementation",
                                                         "_attn_implementation_internal",
                                                         "_experts_implementation_internal",
                                                         "attn_implementation",
                                                         "experts_implementation",
                                                         "auto_map",
                                                         "custom_pipelines",
                                                         "trust_remote_code",
                                                         "_name_or_path"};
constexpr std::size_t kMaxJsonBytes = 64u << 20;  // as readers of chat templates take
constexpr std::size_t kMaxCompanionBytes = std::size_t{1} << 30;

bool is_unsafe(const std::string& key) {
  return std::find(kUnsafeKeys.begin(), kUnsafeKeys.end(), key) != kUnsafeKeys.end();
}

Json to_json(const Provenance& provenance) {
  return {{"kind", provenance.kind},
          {"checkpoint_hash", provenance.checkpoint_hash},
          {"tokens_hash", provenance.tokens_hash},
          {"options", provenance.options},
          {"tool_version", provenance.tool_version}};
}

Json report_json(const Conversion& conversion) {
  Json json = Json::array();
  for (const GroupReport& group : conversion.report) {
    json.push_back(to_json(group));
    json.back().erase("singular_values");  // conversion.h5 has them
  }
  for (const CodedReport& block : conversion.coded) {
    json.push_back(to_json(block));
  }
  return json;
}

// Writes the JSON object in `source` to `target`, changed by `edit`; a plain copy when `edit`
// returns false.
template <typename Edit>
void copy_json(const fs::path& source, const fs::path& target, const Edit& edit) {
  Json json = read_json(source, kMaxJsonBytes);
  write_file(target, edit(json) ? dump_json(json) : read_file(source, kMaxJsonBytes));
}

// True for files whose copies differ from the checkpoint's own: what could load code is left out.
bool is_edited(const fs::path& file) {
  constexpr std::string_view kEdited[] = {"generation_config.json", "preprocessor_config.json",
                                          "processor_config.json", "tokenizer_config.json",
                                          "video_preprocessor_config.json"};
  return std::find(std::begin(kEdited), std::end(kEdited), file.string()) != std::end(kEdited);
}

}  // namespace

bool strip_unsafe_keys(Json& json) {
  bool changed = false;
  if (json.is_object()) {
    std::vector<std::string> unsafe;
    for (const auto& [key, value] : json.items()) {
      if (is_unsafe(key)) {
        unsafe.push_back(key);
      }
    }
    for (const std::string& key : unsafe) {
      json.erase(key);
    }
    changed = !unsafe.empty();
  }
  if (json.is_structured()) {
    for (Json& value : json) {
      changed = strip_unsafe_keys(value) || changed;
    }
  }
  return changed;
}

Json factored_config(const Checkpoint& checkpoint, const ModelConfig& config,
                     const Conversion& conversion, const std::string& factor_dtype) {
  const std::string family(config.arch->model_type);
  Json json = checkpoint.config();
  strip_unsafe_keys(json);
  json["model_type"] = "kvconvert_" + family;
  Json kvconvert;
  kvconvert["format"] = 1;
  kvconvert["family"] =
      family;  // a nested model_type would be taken for the configuration of a part
  kvconvert["factor_dtype"] = factor_dtype;
  kvconvert["plan"] = to_json(conversion.plan);
  kvconvert["settings"] = conversion.settings;
  kvconvert["report"] = report_json(conversion);
  for (const FusedReport& layer : conversion.fused) {
    kvconvert["fused"].push_back(to_json(layer));
  }
  if (!conversion.distillation.is_null()) {
    kvconvert["distillation"] = conversion.distillation;
  }
  kvconvert["calibration_hashes"] = conversion.calibration_hashes;
  kvconvert["provenance"] = to_json(conversion.provenance);
  json["kvconvert"] = std::move(kvconvert);
  return json;
}

void write_folded_config(const Checkpoint& checkpoint, const fs::path& directory) {
  copy_json(checkpoint.directory() / "config.json", directory / "config.json", strip_unsafe_keys);
}

void check_companion_files(const Checkpoint& checkpoint) {
  for (const fs::path& file : checkpoint.companion_files()) {
    if (is_edited(file)) {
      read_json(checkpoint.directory() / file, kMaxJsonBytes);
    }
  }
}

void copy_companion_files(const Checkpoint& checkpoint, const fs::path& directory,
                          bool small_cache) {
  for (const fs::path& file : checkpoint.companion_files()) {
    const fs::path source = checkpoint.directory() / file, target = directory / file;
    fs::create_directories(target.parent_path());
    if (file == "generation_config.json") {
      copy_json(source, target, [small_cache](Json& json) {
        const bool dropped =
            small_cache && json.is_object() && json.erase("cache_implementation") != 0;
        return strip_unsafe_keys(json) || dropped;
      });
    } else if (is_edited(file)) {
      copy_json(source, target, strip_unsafe_keys);
    } else {
      write_file(target, read_file(source, kMaxCompanionBytes));
    }
  }
}

}  // namespace kvc
