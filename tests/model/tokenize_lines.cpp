// Reads JSON lines and answers each with one: a string with {"ids", "text"} (its ids with special
// tokens and what they decode to), a list of ids with {"text", "all"} (decoded without and with
// special tokens). What scripts/check_tokenizer.py compares with the tokenizers library.
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer/tokenizer.h"

namespace {

nlohmann::json answer(const kvc::Tokenizer& tokenizer, const nlohmann::json& line) {
  if (line.is_string()) {
    const auto ids = tokenizer.encode(line.get<std::string>());
    return {{"ids", ids}, {"text", tokenizer.decode(ids)}};
  }
  const auto ids = line.get<std::vector<std::int64_t>>();
  return {{"text", tokenizer.decode(ids, true)}, {"all", tokenizer.decode(ids, false)}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: tokenize_lines MODEL_DIRECTORY < LINES\n";
    return 2;
  }
  try {
    const auto tokenizer = kvc::Tokenizer::load(argv[1]);
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(tokenizer, nlohmann::json::parse(line)).dump() << '\n';
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
