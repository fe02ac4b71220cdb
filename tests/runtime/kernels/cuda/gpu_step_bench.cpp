// How fast a decoding step of a model of the shape of an 8B is, as a ratio to copying memory in the same run. Needs the
// CUDA toolkit and nothing else.
//
//   cuda_step_bench [--json FILE]      exit code 77: there is no GPU
#include <cuda_runtime_api.h>

#include <memory>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "runtime/kernels/cuda/step_program.h"
#include "tests/runtime/kernels/cuda/gpu_backend.h"
#include "tests/runtime/kernels/cuda/gpu_main.h"
#include "tests/runtime/kernels/cuda/gpu_timing.h"

namespace kvc::testing {
namespace {

constexpr int kHidden = 4096, kInner = 14336, kHeads = 32, kKvHeads = 8, kHeadDim = 128,
              kVocab = 128256, kMostLayers = 32, kTokens = 512, kPage = 32, kMostRows = 32;
constexpr int kProjected = (kHeads + 2 * kKvHeads) * kHeadDim;
constexpr std::size_t kLayerWeights = std::size_t{kHidden} * (kProjected + kHidden + 3 * kInner);
constexpr std::size_t kRowWidth = std::size_t{kKvHeads} * kHeadDim;

void require(const LaunchError& error) {
  if (!error.empty()) {
    throw std::runtime_error(error);
  }
}

// Memory of one step at a time; weights are random bfloat16 numbers, every layer's its own.
class StepModel {
 public:
  StepModel() {
    std::size_t free = 0, total = 0;
    check_cuda(cudaMemGetInfo(&free, &total), "memory");
    const std::size_t head = std::size_t{kVocab} * kHidden * 2;
    const std::size_t stores = 2 * 2 * kMostRows * kTokens * kRowWidth;
    const std::size_t layer = 2 * kLayerWeights + stores + stores / 8;
    const std::size_t fits = free > 3 * head ? (free - 3 * head) / layer : 0;
    layers_ = static_cast<int>(fits < kMostLayers ? fits : kMostLayers);
    if (layers_ == 0) {
      throw std::runtime_error("the GPU has too little memory free for one layer");
    }
    std::mt19937 generator(1);
    std::normal_distribution<float> normal(0, 0.02f);
    std::vector<std::uint16_t> numbers(kBlock / 2);
    for (std::uint16_t& x : numbers) {
      x = narrow_bits(BFloat16{}, normal(generator));
    }
    random_ = weights_.upload(numbers);
    head_ = weight(std::size_t{kVocab} * kHidden);
    for (int i = 0; i < layers_; ++i) {
      qkv_.push_back(weight(std::size_t{kProjected} * kHidden));
      output_.push_back(weight(std::size_t{kHidden} * kHidden));
      gate_up_.push_back(weight(std::size_t{2} * kInner * kHidden));
      down_.push_back(weight(std::size_t{kHidden} * kInner));
    }
  }

  int layers() const { return layers_; }
  double weight_bytes() const {
    return 2.0 *
           (static_cast<double>(kLayerWeights) * layers_ + static_cast<double>(kVocab) * kHidden);
  }

  // A step of `rows` sequences that have kTokens tokens each, at most kMostRows. Takes the memory of the one before.
  StepProgram step(int rows, float temperature, float top_p) {
    rows_ = rows;
    memory_.reset();
    memory_ = std::make_unique<GpuBackend>();
    const auto count = static_cast<std::size_t>(rows);
    const std::vector<float> ones(kHidden, 1.0f);
    const float* norm = memory_->upload(ones);
    hidden_ = memory_->upload(std::vector<float>(count * kHidden, 0.0f));
    normed_ = halves(kHidden);
    attended_ = halves(kHidden);
    inner_ = halves(kInner);
    ids_ = memory_->upload(std::vector<std::int32_t>(count, 1));
    positions_ = memory_->upload(std::vector<std::int32_t>(count, kTokens - 1));
    num_rows_ = memory_->upload(std::vector<std::int32_t>(count, kTokens));
    angles_ = memory_->upload(std::vector<float>(std::size_t{kTokens} * kHeadDim / 2, 0.7f));
    StepProgram program = {EmbedRows{
        .ids = ids_, .num_rows = rows, .width = kHidden, .table = head_, .output = hidden_}};
    for (int layer = 0; layer < layers_; ++layer) {
      add_layer(static_cast<std::size_t>(layer), norm, program);
    }
    add_head(norm, temperature, top_p, program);
    return program;
  }
  FewRowsProduct gate_up(int layer) const {
    FewRowsProduct params =
        product(gate_up_[static_cast<std::size_t>(layer)], normed_, kHidden, kInner);
    params.gated = true;
    params.activation = DeviceActivation::kSilu;
    params.output = inner_;
    return params;
  }

 private:
  static constexpr std::size_t kBlock = std::size_t{1} << 26;

  void* weight(std::size_t count) {
    auto* numbers = static_cast<std::uint8_t*>(weights_.allocate(2 * count));
    for (std::size_t first = 0; first < 2 * count; first += kBlock) {
      const std::size_t bytes = 2 * count - first < kBlock ? 2 * count - first : kBlock;
      check_cuda(cudaMemcpy(numbers + first, random_, bytes, cudaMemcpyDeviceToDevice), "copy");
    }
    return numbers;
  }
  void* halves(int width) {
    return memory_->upload(std::vector<std::uint16_t>(static_cast<std::size_t>(rows_) *
                                                      static_cast<std::size_t>(width)));
  }
  FewRowsProduct product(const void* weight, const void* x, int in, int out) const {
    FewRowsProduct params;
    params.x = x;
    params.num_rows = rows_;
    params.in = in;
    params.out = out;
    params.weight = weight;
    return params;
  }
  NormRows norm_of(const float* weight) const {
    return {.x = hidden_,
            .num_rows = rows_,
            .width = kHidden,
            .weight = weight,
            .epsilon = 1e-5f,
            .output = normed_};
  }
  DeviceRows store() {
    const std::size_t page = kPage * kRowWidth;
    const std::size_t count = static_cast<std::size_t>(rows_) * kTokens / kPage;
    const std::uint16_t* numbers = memory_->upload(std::vector<std::uint16_t>(count * page));
    std::vector<const void*> blocks;
    for (std::size_t i = 0; i < count; ++i) {
      blocks.push_back(numbers + i * page);
    }
    return {memory_->upload(blocks), kTokens / kPage, kPage, kKvHeads * kHeadDim};
  }

  void add_layer(std::size_t layer, const float* norm, StepProgram& program) {
    const auto count = static_cast<std::size_t>(rows_);
    program.push_back(norm_of(norm));
    FewRowsProduct qkv = product(qkv_[layer], normed_, kHidden, kProjected);
    qkv.output_float = memory_->upload(std::vector<float>(count * kProjected));
    program.push_back(qkv);
    const DeviceRows key = store(), value = store();
    void* query = halves(kHidden);
    program.push_back(AppendRows{.projected = qkv.output_float,
                                 .num_sequences = rows_,
                                 .num_heads = kHeads,
                                 .num_kv_heads = kKvHeads,
                                 .head_dim = kHeadDim,
                                 .rope = {angles_, angles_, kHeadDim / 2, false},
                                 .positions = positions_,
                                 .query = query,
                                 .key = key,
                                 .value = value});
    DenseAttention attention;
    attention.query = query;
    attention.rows[0].key = key;
    attention.rows[0].value = value;
    attention.num_rows = num_rows_;
    attention.num_sequences = rows_;
    attention.num_heads = kHeads;
    attention.num_kv_heads = kKvHeads;
    attention.head_dim = kHeadDim;
    attention.scale = 0.088f;
    attention.partials.num_parts = attention_parts(132, rows_ * kKvHeads, kTokens);
    const std::size_t heads =
        count * static_cast<std::size_t>(attention.partials.num_parts) * kHeads;
    attention.partials.max = memory_->upload(std::vector<float>(heads));
    attention.partials.sum = memory_->upload(std::vector<float>(heads));
    attention.partials.output = memory_->upload(std::vector<float>(heads * kHeadDim));
    program.push_back(attention);
    CombinePartials combine;
    combine.sources[0] = attention.partials;
    combine.num_sources = 1;
    combine.num_sequences = rows_;
    combine.num_heads = kHeads;
    combine.width = kHeadDim;
    combine.output = attended_;
    program.push_back(combine);
    FewRowsProduct output = product(output_[layer], attended_, kHidden, kHidden);
    output.residual = hidden_;
    program.push_back(output);
    program.push_back(norm_of(norm));
    program.push_back(gate_up(static_cast<int>(layer)));
    FewRowsProduct down = product(down_[layer], inner_, kInner, kHidden);
    down.residual = hidden_;
    program.push_back(down);
  }
  void add_head(const float* norm, float temperature, float top_p, StepProgram& program) {
    const auto count = static_cast<std::size_t>(rows_);
    program.push_back(norm_of(norm));
    FewRowsProduct head = product(head_, normed_, kHidden, kVocab);
    head.output_float = memory_->upload(std::vector<float>(count * kVocab));
    program.push_back(head);
    SampleTokens sample{.logits = head.output_float,
                        .num_sequences = rows_,
                        .vocab_size = kVocab,
                        .temperature = temperature,
                        .top_p = top_p,
                        .seeds = memory_->upload(std::vector<std::uint64_t>(count, 1)),
                        .ids = ids_,
                        .positions = positions_,
                        .tokens = memory_->upload(std::vector<std::int32_t>(count * kTokens)),
                        .tokens_stride = kTokens};  // all full: positions stay where they are
    program.push_back(sample);
  }

  GpuBackend weights_;
  std::unique_ptr<GpuBackend> memory_;
  int layers_ = 0, rows_ = 1;
  void *random_ = nullptr, *head_ = nullptr;
  std::vector<void*> qkv_, output_, gate_up_, down_;
  float *hidden_ = nullptr, *angles_ = nullptr;
  void *normed_ = nullptr, *attended_ = nullptr, *inner_ = nullptr;
  std::int32_t *ids_ = nullptr, *positions_ = nullptr, *num_rows_ = nullptr;
};

// Bytes a millisecond.
double copy_rate(TimingReport& report) {
  GpuBackend memory;
  const std::size_t bytes = std::size_t{1} << 30;
  void *from = memory.allocate(bytes), *to = memory.allocate(bytes);
  const double ms = median_times(
      {[&] { check_cuda(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDeviceToDevice), "copy"); }},
      3)[0];
  report.add("copy of 1 GiB", ms, 2e-6 * static_cast<double>(bytes) / ms, "GB/s", "ceiling");
  return 2.0 * static_cast<double>(bytes) / ms;
}

TimingReport run() {
  TimingReport report;
  const double copy = copy_rate(report);
  StepModel model;
  cudaStream_t stream;
  check_cuda(cudaStreamCreate(&stream), "stream");
  const std::string shape =
      "step of " + std::to_string(model.layers()) + " layers of an 8B, bf16, ";
  for (const int rows : {1, 4, 8, 16, 32}) {
    for (const bool draws : {false, true}) {
      StepGraph graph;
      require(graph.capture(model.step(rows, draws ? 0.8f : 0.0f, draws ? 0.95f : 1.0f), stream));
      // Events are of the default stream, which waits for this one and is waited for.
      const double ms = median_times({[&] { require(graph.launch(stream)); }}, 3)[0];
      report.add(
          shape + std::to_string(rows) + " sequences at 512 tokens" + (draws ? ", top-p" : ""), ms,
          model.weight_bytes() / ms / copy, "copy, of the weights' bytes",
          rows == 1 && !draws ? "G11: 0.88" : "");
    }
    const double ms = median_times({[&] {
                                     for (int layer = 0; layer < model.layers(); ++layer) {
                                       require(launch_cuda(model.gate_up(layer), stream));
                                     }
                                   }},
                                   3)[0];
    const double bytes = 4.0 * kInner * kHidden * model.layers();
    report.add("gate and up of all layers, " + std::to_string(rows) + " rows", ms,
               bytes / ms / copy, "copy", "");
  }
  check_cuda(cudaStreamDestroy(stream), "stream");
  return report;
}

}  // namespace
}  // namespace kvc::testing

int main(int argc, char** argv) {
  return kvc::testing::gpu_bench_main(argc, argv, [] { return kvc::testing::run().json(); });
}
