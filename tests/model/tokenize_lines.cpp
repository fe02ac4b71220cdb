// Reads JSON lines and answers each with one: a string with {"ids", "text"} (its ids with special
// tokens and what they decode to), a list of ids with {"text", "all"} (decoded without and with
// special tokens), {"timed": texts} with {"seconds", "num_ids"}; before them, {"load_seconds"} if a
// second argument asks for times. What tests/checks/check_tokenizer.py and bench/bench_tokenizer.py talk to.
#include <chrono>
#include <exception>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "model/tokenizer/tokenizer.h"

namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

nlohmann::json timed(const kvc::Tokenizer& tokenizer, const std::vector<std::string>& texts) {
  const auto start = Clock::now();
  std::size_t num_ids = 0;
  for (const std::string& text : texts) num_ids += tokenizer.encode(text).size();
  return {{"seconds", seconds_since(start)}, {"num_ids", num_ids}};
}

nlohmann::json answer(const kvc::Tokenizer& tokenizer, const nlohmann::json& line) {
  if (line.is_string()) {
    const auto ids = tokenizer.encode(line.get<std::string>());
    return {{"ids", ids}, {"text", tokenizer.decode(ids)}};
  }
  if (line.is_object()) return timed(tokenizer, line.at("timed"));
  const auto ids = line.get<std::vector<std::int64_t>>();
  return {{"text", tokenizer.decode(ids, true)}, {"all", tokenizer.decode(ids, false)}};
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::cerr << "usage: tokenize_lines MODEL_DIRECTORY [times] < LINES\n";
    return 2;
  }
  try {
    const auto start = Clock::now();
    const auto tokenizer = kvc::Tokenizer::load(argv[1]);
    if (argc == 3)
      std::cout << nlohmann::json{{"load_seconds", seconds_since(start)}}.dump() << std::endl;
    for (std::string line; std::getline(std::cin, line);) {
      std::cout << answer(tokenizer, nlohmann::json::parse(line)).dump() << '\n';
      if (argc == 3) std::cout.flush();
    }
  } catch (const std::exception& error) {
    std::cerr << error.what() << '\n';
    return 1;
  }
}
