// Wrong JSON files made from good ones: structure, not bytes, so that most of them pass the parser and
// reach the code that reads meaning.
#pragma once

#include <random>
#include <string>

#include "core/json.h"

namespace kvc::testing {

class JsonMutator {
 public:
  explicit JsonMutator(std::uint64_t seed) : random_(seed) {}

  // The text of `good` with one to three mistakes; the same texts for the same seed.
  std::string mutant(const Json& good);

 private:
  std::size_t below(std::size_t bound) { return random_() % bound; }
  Json& any_container(Json& root);
  Json wrong_value(const Json& value);
  void mutate(Json& root);
  void damage_text(std::string& text);

  std::mt19937_64 random_;
};

}  // namespace kvc::testing
