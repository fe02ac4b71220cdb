// JSON as the project uses it: key order kept, duplicate keys and excessive depth refused, numbers
// never re-typed.
#pragma once

#include <filesystem>
#include <functional>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace kvc {

using Json = nlohmann::ordered_json;

// Parses UTF-8 JSON text of an object or array. `subject` names the text in messages.
// Integers stay integers (those beyond 64 bits become floats), floats stay floats.
Json parse_json(std::string_view text, const std::string& subject);
// Parses an object and passes its members to `visit` one by one, so a huge object is never in
// memory as a whole. Messages of `visit` go through unchanged.
void parse_json_members(std::string_view text, const std::string& subject,
                        const std::function<void(std::string&& key, Json&& value)>& visit);
// Reads and parses a file of at most `max_bytes`.
Json read_json(const std::filesystem::path& path, std::size_t max_bytes = 16u << 20);
// The start of a value's text on one line, printable ASCII: for messages.
std::string excerpt(const Json& json);
// Indented by 2, keys in order, non-ASCII kept, final newline. Floats that are not finite become
// null.
std::string dump_json(const Json& json);

}  // namespace kvc
