// The attention kernels against the streaming read bandwidth of the same threads, one after the other in
// every round: kernels_bench [tokens] [threads] [rounds] [part of the cases' names]. Rates count the bytes of
// keys and values; "of dense" compares tokens a second with the bfloat16 cache of the same heads.
#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "tests/bench/kernel_cases.h"

namespace kvc {
namespace {

// body(thread) on every thread, again and again. Threads wait in loops: a wake-up by the system takes as long as some
// hundred tokens.
class Team {
 public:
  explicit Team(int size) : size_(size) {
    for (int thread = 1; thread < size; ++thread) {
      threads_.emplace_back([this, thread](const std::stop_token& stop) {
        for (int round = 1;; ++round) {
          while (round_.load(std::memory_order_acquire) < round) {
            if (stop.stop_requested()) {
              return;
            }
          }
          body_(thread);
          ended_.fetch_add(1, std::memory_order_release);
        }
      });
    }
  }

  double seconds(const std::function<void(int)>& body) {
    body_ = body;
    ended_ = 0;
    const auto begin = std::chrono::steady_clock::now();
    round_.fetch_add(1, std::memory_order_release);
    body_(0);
    while (ended_.load(std::memory_order_acquire) < size_ - 1) {
    }
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  }

 private:
  int size_;
  std::atomic<int> round_ = 0, ended_ = 0;
  std::function<void(int)> body_;
  std::vector<std::jthread> threads_;
};

double median(std::vector<double> numbers) {
  std::sort(numbers.begin(), numbers.end());
  return numbers.empty() ? 0 : numbers[numbers.size() / 2];
}

void measure(std::int64_t tokens, int threads, int rounds, const std::string& only) {
  std::vector<Case> cases = make_cases(tokens);
  std::erase_if(cases, [&](const Case& c) {
    return c.name != "read" && c.name.find(only) == std::string::npos;
  });
  Team team(threads);
  std::vector<std::vector<double>> rates(cases.size()), of_read(cases.size()),
      of_dense(cases.size());
  for (int round = -1; round < rounds; ++round) {
    std::map<std::string, double> tokens_per_second;
    for (std::size_t i = 0; i < cases.size(); ++i) {
      const Case& c = cases[i];
      const double seconds = team.seconds([&](int thread) { c.run(thread, threads); });
      tokens_per_second[c.name] = static_cast<double>(c.tokens) / seconds;
      if (round < 0) {
        continue;
      }
      rates[i].push_back(static_cast<double>(c.bytes) / seconds / 1e9);
      of_read[i].push_back(rates[i].back() / rates[0].back());
      if (const auto dense = tokens_per_second.find(c.dense); dense != tokens_per_second.end()) {
        of_dense[i].push_back(tokens_per_second[c.name] / dense->second);
      }
    }
  }
  std::printf("%lld tokens (times their size in bfloat16), %d threads, medians of %d rounds\n",
              static_cast<long long>(tokens), threads, rounds);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    std::printf("%-24s %7.1f GB/s  %5.2f of read", cases[i].name.c_str(), median(rates[i]),
                median(of_read[i]));
    of_dense[i].empty() ? std::printf("\n")
                        : std::printf("  %5.2f of dense\n", median(of_dense[i]));
  }
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  const auto number = [&](int at, int otherwise) {
    return argc > at ? std::atoi(argv[at]) : otherwise;
  };
  kvc::measure(number(1, 16384), number(2, 2), number(3, 9), argc > 4 ? argv[4] : "");
  return 0;
}
