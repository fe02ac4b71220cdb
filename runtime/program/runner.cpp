#include "runtime/program/runner.h"

#include <memory>
#include <utility>

#include "core/error.h"
#include "model/cache_plan.h"
#include "model/compute_place.h"
#include "runtime/block_cache.h"
#ifdef KVC_CUDA
#include "runtime/gpu/cuda_executor.h"
#include "runtime/gpu/gpu_engine.h"
#endif

namespace kvc {
namespace {

Runner cpu_runner(const RunOptions& options) {
  const auto engine = std::make_shared<Engine>(Engine::load(options.model, options.engine));
  BlockCache::of_process().release();  // what only loading took
  Runner runner;
  runner.config = engine->config();
  runner.generate = [engine](const Engine::Ids& prompts, const GenerateOptions& generation,
                             const TokenVisitor& visit) {
    return generate(*engine, prompts, generation, visit);
  };
  runner.describe = [engine](const GenerateResult&) {
    return RunModel{.plan = engine->plan(),
                    .policy = engine->policy(),
                    .original_kv_dtype = cache_dtype(engine->config()),
                    .page_tokens = engine->pool().page_tokens(),
                    .weight_bytes = engine->weight_bytes(),
                    .kv_peak_bytes = engine->pool().peak_bytes(),
                    .has_part_times = engine->part_times() != nullptr};
  };
  runner.turns = [engine] { return engine_turns(*engine); };
  return runner;
}

#ifdef KVC_CUDA
Runner gpu_runner(const RunOptions& options, at::Device device) {
  const auto engine = std::make_shared<GpuEngine>(
      GpuEngine::load(options.model, options.engine, cuda_executor(device)));
  Runner runner;
  runner.config = engine->config();
  runner.generate = [engine](const Engine::Ids& prompts, const GenerateOptions& generation,
                             const TokenVisitor& visit) {
    return engine->generate(prompts, generation, visit);
  };
  runner.describe = [engine](const GenerateResult&) {
    return RunModel{.plan = engine->plan(),
                    .policy = engine->policy(),
                    .original_kv_dtype = cache_dtype(engine->config()),
                    .page_tokens = engine->page_tokens(),
                    .weight_bytes = engine->weight_bytes(),
                    .kv_peak_bytes = engine->kv_peak_bytes()};
  };
  runner.turns = [engine] { return engine->turns(); };
  return runner;
}
#endif

}  // namespace

Runner load_runner(const RunOptions& options) {
  const at::Device device = compute_device(options.device);
  if (device.is_cpu()) {
    return cpu_runner(options);
  }
#ifdef KVC_CUDA
  return gpu_runner(options, device);
#else
  fail("--device {}: this build has no GPU support; use --device cpu", options.device);
#endif
}

}  // namespace kvc
