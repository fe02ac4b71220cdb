#include "convert/method_support.h"

#include <fmt/ranges.h>

#include "model/arch_settings.h"

namespace kvc {
namespace {

// A table's row.
std::string row(const std::vector<std::string>& cells) {
  return fmt::format("| {} |\n", fmt::join(cells, " | "));
}

std::string rule(std::size_t num_columns) {
  return row(std::vector<std::string>(num_columns, "---"));
}

std::string methods_table() {
  std::vector<std::string> header = {"family", "kvrun"};
  for (const Method& method : methods()) {
    header.emplace_back(method.name);
  }
  std::string text = row(header) + rule(header.size());
  for (const ArchSpec& arch : supported_archs()) {
    std::vector<std::string> cells = {fmt::format("`{}`", arch.model_type), "yes"};
    for (const Method& method : methods()) {
      cells.push_back(refusal(method, arch).value_or("yes"));
    }
    text += row(cells);
  }
  return text;
}

std::string notes_table() {
  std::string text = row({"family", "what to know", "settings honoured"}) + rule(3);
  for (const ArchSpec& arch : supported_archs()) {
    std::vector<std::string> keys;
    for (const std::string& key : honoured_settings(arch)) {
      keys.push_back(fmt::format("`{}`", key));
    }
    text += row({fmt::format("`{}`", arch.model_type),
                 fmt::format("{}", fmt::join(family_notes(arch), "; ")),
                 fmt::format("{}", fmt::join(keys, ", "))});
  }
  return text;
}

}  // namespace

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
        "a layer with a sliding window sees its last tokens only: nothing is gained on tokens "
        "behind it; groups end where the window changes");
  }
  if (arch.rope == RopeRule::kPerLayerType) {
    notes.emplace_back("groups end where RoPE changes");
  }
  if (arch.rope == RopeRule::kLongRope) {
    notes.emplace_back("cached keys are rotated anew when the long factors set in");
  }
  if (arch.layers_without_rope) {
    notes.emplace_back("groups end between layers with and without RoPE");
  }
  if (arch.fused_projections) {
    notes.emplace_back("keys and values are rows of `qkv_proj`, which stays in place");
  }
  if (arch.latent_attention) {
    notes.emplace_back(
        "one latent per token and layer is cached already; `xkv` and `xkv-static` reduce those of "
        "adjacent layers, rotary keys stay");
  }
  if (arch.experts != ExpertStyle::kNone && !arch.latent_attention) {
    notes.emplace_back("attention is converted, experts are carried along");
  }
  if (arch.nested_text) {
    notes.emplace_back(
        "the text model is converted; tensors of the vision tower are carried along");
  }
  return notes;
}

std::string support_text() { return methods_table() + "\n" + notes_table(); }

Json support_json() {
  Json families = Json::array();
  for (const ArchSpec& arch : supported_archs()) {
    Json family;
    family["model_type"] = arch.model_type;
    family["architecture"] = arch.architecture;
    family["methods"] = Json::object();
    for (const Method& method : methods()) {
      const auto reason = refusal(method, arch);
      family["methods"][std::string(method.name)] = reason ? Json(*reason) : Json(nullptr);
    }
    family["notes"] = family_notes(arch);
    family["settings"] = honoured_settings(arch);
    families.push_back(std::move(family));
  }
  Json json;
  json["families"] = std::move(families);
  return json;
}

}  // namespace kvc
