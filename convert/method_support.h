// Which method converts which family: the one place that knows, from the traits of the table of
// architectures.
#pragma once

#include <optional>
#include <string>

#include "convert/methods/methods.h"
#include "core/json.h"
#include "model/arch.h"

namespace kvc {

// Why `method` cannot convert models of this family; nullopt where it can.
std::optional<std::string> refusal(const Method& method, const ArchSpec& arch);
// What someone who converts such a model should know; may be empty.
std::vector<std::string> family_notes(const ArchSpec& arch);

// Families by methods: Markdown as docs/models.md has it, or JSON.
std::string support_text();
Json support_json();

}  // namespace kvc
