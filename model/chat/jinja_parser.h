// Tokens to statements, with Jinja2's grammar. Refused by name: extends, block, include, import,
// autoescape, trans and recursive loops.
#pragma once

#include <string_view>

#include "model/chat/jinja_ast.h"

namespace kvc::jinja {

// Error with the line of what is malformed or not supported.
Block parse(std::string_view source);

}  // namespace kvc::jinja
