// render_chat: reads one JSON object per line, {"template": text, "variables": {...}, "now": seconds},
// and prints {"text": ...} or {"error": ...} for each. What tests compare with Jinja2.
#include <exception>
#include <iostream>
#include <string>

#include "core/json.h"
#include "model/chat/chat_template.h"

int main() {
  for (std::string line; std::getline(std::cin, line);) {
    kvc::Json answer;
    try {
      const kvc::Json input = kvc::parse_json(line, "input");
      const kvc::ChatTemplate chat(input.at("template").get<std::string>(), kvc::Json::object(),
                                   "template");
      answer = {{"text", chat.render(input.at("variables"), input.value("now", 0))}};
    } catch (const std::exception& error) {
      answer = {{"error", error.what()}};
    }
    std::cout << answer.dump() << '\n';
  }
}
