// The methods that convert each model family, derived from the traits of the table of
// architectures.
#pragma once

#include <optional>
#include <string>

#include "convert/methods/methods.h"
#include "core/json.h"
#include "model/arch.h"

namespace kvc {

// Why `method` cannot convert models of this family; nullopt if it can.
std::optional<std::string> refusal(const Method& method, const ArchSpec& arch);
// Notes for users who convert such a model; may be empty.
std::vector<std::string> family_notes(const ArchSpec& arch);

// Families by methods: the Markdown of docs/models.md, or JSON.
std::string support_text();
Json support_json();

}  // namespace kvc
