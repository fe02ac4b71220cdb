#include "tests/runtime/kernels/cuda/gpu_timing.h"

#include <cuda_runtime_api.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <sstream>

#include "tests/runtime/kernels/cuda/gpu_backend.h"

namespace kvc::testing {

std::vector<double> median_times(const std::vector<std::function<void()>>& things, int repeats) {
  constexpr int kWarmUp = 2, kRounds = 11;
  cudaEvent_t begin, end;
  check_cuda(cudaEventCreate(&begin), "event");
  check_cuda(cudaEventCreate(&end), "event");
  std::vector<std::vector<double>> times(things.size());
  for (int round = -kWarmUp; round < kRounds; ++round) {
    for (std::size_t i = 0; i < things.size(); ++i) {
      if (!things[i]) {
        continue;
      }
      check_cuda(cudaEventRecord(begin), "event");
      for (int repeat = 0; repeat < repeats; ++repeat) {
        things[i]();
      }
      check_cuda(cudaEventRecord(end), "event");
      check_cuda(cudaEventSynchronize(end), "kernel");
      float milliseconds = 0;
      check_cuda(cudaEventElapsedTime(&milliseconds, begin, end), "event");
      if (round >= 0) {
        times[i].push_back(static_cast<double>(milliseconds) / repeats);
      }
    }
  }
  (void)cudaEventDestroy(begin);
  (void)cudaEventDestroy(end);
  std::vector<double> medians;
  for (std::vector<double>& own : times) {
    if (own.empty()) {
      medians.push_back(std::nan(""));
      continue;
    }
    std::nth_element(own.begin(), own.begin() + kRounds / 2, own.end());
    medians.push_back(own[kRounds / 2]);
  }
  return medians;
}

void TimingReport::add(const std::string& name, double milliseconds, double ratio,
                       const std::string& of, const std::string& target) {
  if (std::isnan(ratio)) {
    return;
  }
  std::ostringstream line;
  line << "    {\"name\": \"" << name << "\", \"ms\": " << milliseconds << ", \"ratio\": " << ratio
       << ", \"of\": \"" << of << "\", \"target\": \"" << target << "\"}";
  lines_.push_back(line.str());
  std::printf("%-52s %10.4f ms %8.3f of %s%s%s\n", name.c_str(), milliseconds, ratio, of.c_str(),
              target.empty() ? "" : "; target ", target.c_str());
}

std::string TimingReport::json() const {
  cudaDeviceProp properties;
  check_cuda(cudaGetDeviceProperties(&properties, 0), "device");
  int clock = 0, memory_clock = 0;
  check_cuda(cudaDeviceGetAttribute(&clock, cudaDevAttrClockRate, 0), "device");
  check_cuda(cudaDeviceGetAttribute(&memory_clock, cudaDevAttrMemoryClockRate, 0), "device");
  std::ostringstream text;
  text << "{\n  \"device\": \"" << properties.name
       << "\",\n  \"multiprocessors\": " << properties.multiProcessorCount
       << ",\n  \"most_clock_khz\": " << clock << ",\n  \"most_memory_clock_khz\": " << memory_clock
       << ",\n  \"results\": [\n";
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    text << lines_[i] << (i + 1 < lines_.size() ? ",\n" : "\n");
  }
  text << "  ]\n}\n";
  return text.str();
}

}  // namespace kvc::testing
