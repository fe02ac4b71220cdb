#include "convert/methods/methods.h"

#include <fmt/ranges.h>

#include <algorithm>

#include "core/error.h"
#include "model/arch.h"

namespace kvc {
namespace {

// A table's row.
std::string row(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string rule(std::size_t num_columns) {
  return row(std::vector<std::string>(num_columns, "---"));
}

// Sentences that the tables name by number, each listed once.
class Notes {
 public:
  std::size_t number(const std::string& note) {
    const auto found = std::find(notes_.begin(), notes_.end(), note);
    const auto index = static_cast<std::size_t>(found - notes_.begin());
    if (found == notes_.end()) {
      notes_.push_back(note);
    }
    return index + 1;
  }

  std::string list() const {
    std::string text;
    for (std::size_t i = 0; i < notes_.size(); ++i) {
      text += fmt::format("{}. {}\n", i + 1, notes_[i]);
    }
    return text;
  }

 private:
  std::vector<std::string> notes_;
};

std::string methods_table(Notes& notes) {
  std::vector<std::string> header = {"family", "kvrun"};
  for (const Method& method : methods()) {
    header.emplace_back(method.name);
  }
  std::string text = row(header) + rule(header.size());
  for (const ArchSpec& arch : supported_archs()) {
    std::vector<std::string> cells = {fmt::format("`{}`", arch.model_type), "yes"};
    for (const Method& method : methods()) {
      const auto reason = refusal(method, arch);
      cells.push_back(reason ? fmt::format("no ({})", notes.number(*reason)) : "yes");
    }
    text += row(cells);
  }
  return text;
}

std::string notes_table(Notes& notes) {
  std::string text = row({"family", "notes", "settings honoured"}) + rule(3);
  for (const ArchSpec& arch : supported_archs()) {
    std::vector<std::size_t> numbers;
    for (const std::string& note : family_notes(arch)) {
      numbers.push_back(notes.number(note));
    }
    std::vector<std::string> keys;
    for (const std::string& key : honoured_settings(arch)) {
      keys.push_back(fmt::format("`{}`", key));
    }
    text += row({fmt::format("`{}`", arch.model_type), fmt::format("{}", fmt::join(numbers, ", ")),
                 fmt::format("{}", fmt::join(keys, ", "))});
  }
  return text;
}

}  // namespace

bool takes(const Method& method, Options (*kind)(ConvertSettings& settings)) {
  return std::find(method.options.begin(), method.options.end(), kind) != method.options.end();
}

std::span<const Method> methods() {
  static const Method kMethods[] = {kCommonKv,  kPalu,    kCoded,       kPca,  kXkvStatic, kXkv,
                                    kMiniCache, kFusedKv, kFusedKvLite, kYoco, kCla};
  return kMethods;
}

const Method& find_method(std::string_view name) {
  for (const Method& method : methods()) {
    if (method.name == name) {
      return method;
    }
  }
  fail_usage("--method {}: expected {}", name, method_names([](const Method&) { return true; }));
}

std::string method_names(const std::function<bool(const Method&)>& among) {
  std::vector<std::string_view> names;
  for (const Method& method : methods()) {
    if (among(method)) {
      names.push_back(method.name);
    }
  }
  const std::string_view last = names.back();
  names.pop_back();
  return names.empty() ? std::string(last) : fmt::format("{} or {}", fmt::join(names, ", "), last);
}

std::optional<std::string> refusal(const Method& method, const ArchSpec& arch) {
  if (arch.latent_attention && !method.takes_own_latents) {
    return "each layer already caches one latent per token, so there are no key and value "
           "projections to factorise";
  }
  return std::nullopt;
}

std::vector<std::string> family_notes(const ArchSpec& arch) {
  std::vector<std::string> notes;
  if (arch.qk_norm == QkNorm::kPerHead) {
    notes.emplace_back("keys are normalised head by head after they are rebuilt");
  }
  if (arch.qk_norm == QkNorm::kWholeProjection) {
    notes.emplace_back("keys are normalised over all heads after they are rebuilt");
  }
  if (arch.window != WindowRule::kNone) {
    notes.emplace_back(
        "layers with a sliding window see only their last tokens, so compressing tokens behind it "
        "saves nothing");
    notes.emplace_back("groups end where the window changes");
  }
  if (arch.rope == RopeRule::kPerLayerType) {
    notes.emplace_back("groups end where RoPE changes");
  }
  if (arch.rope == RopeRule::kLongRope) {
    notes.emplace_back("cached keys are rotated again when the long factors apply");
  }
  if (arch.rope_layers != RopeLayers::kAll) {
    notes.emplace_back("groups end between layers with and without RoPE");
  }
  if (arch.fused_projections) {
    notes.emplace_back("keys and values are rows of `qkv_proj`, which stays in place");
  }
  if (arch.latent_attention) {
    notes.emplace_back(
        "`xkv` and `xkv-static` reduce the cached latents of adjacent layers; rotary keys stay "
        "exact");
  }
  if (arch.experts != ExpertStyle::kNone && !arch.latent_attention) {
    notes.emplace_back("attention is converted; experts are copied");
  }
  if (!arch.nested_text.empty()) {
    notes.emplace_back("the text model is converted; tensors of the vision tower are copied");
  }
  return notes;
}

std::string support_text() {
  Notes notes;
  std::string text = methods_table(notes) + "\n";
  text += notes_table(notes) + "\n";
  return text + notes.list();
}

Json support_json() {
  Json families = Json::array();
  for (const ArchSpec& arch : supported_archs()) {
    Json reasons = Json::object();
    for (const Method& method : methods()) {
      const auto reason = refusal(method, arch);
      reasons[std::string(method.name)] = reason ? Json(*reason) : Json(nullptr);
    }
    families.push_back({{"model_type", arch.model_type},
                        {"architecture", arch.architecture},
                        {"methods", reasons},
                        {"notes", family_notes(arch)},
                        {"settings", honoured_settings(arch)}});
  }
  return Json::object({{"families", families}});
}

}  // namespace kvc
