// What kernels_bench measures.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <vector>

namespace kvc {

struct Case {
  std::string name;
  std::int64_t bytes;  // that are read: keys and values, latents or codes
  std::function<void(int thread, int threads)> run;
  std::int64_t tokens = 0;  // of all layers
  std::string dense{};      // the case of as wide heads in bfloat16
};

// Reading memory, then attention over `tokens` tokens, or as many as have the bytes of so many in bfloat16.
std::vector<Case> make_cases(std::int64_t tokens);

}  // namespace kvc
