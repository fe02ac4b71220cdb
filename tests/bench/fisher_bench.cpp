// Fisher information of key and value projections as kvfisher computes it, in turns with the papers' way: the whole
// model in memory, all weights with gradients, one backward pass a sequence (goal G10 of docs/benchmarks.md).
//
//   fisher_bench CHECKPOINT [DEVICE [NUM_SEQUENCES [SEQ_LEN]]]        default: cpu 4 256
//
// Prints JSON: seconds (medians of three rounds; kvfisher's with reading weights and writing its file, the papers'
// without reading), their ratio, the largest difference of a projection's score, the rate of the operations that
// kvfisher needs over that of a large product in the same run, on a GPU the most memory each has had.
#include <ATen/ATen.h>
#include <c10/core/GradMode.h>
#include <fmt/format.h>
#include <unistd.h>
#ifdef KVC_CUDA
#include <c10/cuda/CUDACachingAllocator.h>
#include <c10/cuda/CUDAFunctions.h>
#endif

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstdlib>
#include <exception>
#include <filesystem>
#include <functional>
#include <random>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/hdf5.h"
#include "fisher/fisher.h"
#include "model/decoder.h"

namespace kvc {
namespace {

constexpr int kRounds = 3;

void wait(at::Device device) {
#ifdef KVC_CUDA
  if (device.is_cuda()) {
    c10::cuda::device_synchronize();
  }
#else
  (void)device;
#endif
}

// The most bytes that tensors took since the last call; 0 on a CPU.
std::int64_t take_peak_bytes(at::Device device) {
#ifdef KVC_CUDA
  if (device.is_cuda()) {
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    const auto peak =
        c10::cuda::CUDACachingAllocator::getDeviceStats(device.index()).allocated_bytes[all].peak;
    c10::cuda::CUDACachingAllocator::resetPeakStats(device.index());
    return peak;
  }
#else
  (void)device;
#endif
  return 0;
}

double seconds_of(at::Device device, const std::function<void()>& work) {
  wait(device);
  const auto start = std::chrono::steady_clock::now();
  work();
  wait(device);
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

TokenSet random_tokens(std::int64_t count, std::int64_t length, std::int64_t vocab_size) {
  std::mt19937_64 generator(1);
  TokenSet tokens;
  for (std::int64_t i = 0; i < count; ++i) {
    std::vector<std::int64_t>& sequence = tokens.sequences.emplace_back();
    for (std::int64_t j = 0; j < length; ++j) {
      sequence.push_back(
          static_cast<std::int64_t>(generator() % static_cast<std::uint64_t>(vocab_size)));
    }
  }
  tokens.tokenizer_hash = std::string(64, '0');
  return tokens;
}

// Every weight has a gradient, as calib_fisher_info of the papers' code leaves it.
class WholeModel {
 public:
  WholeModel(const Checkpoint& checkpoint, const ComputePlace& place)
      : place_(place), config_(read_model_config(checkpoint)), rope_(config_, place.dtype) {
    weights_ = to_device(load_model_weights(checkpoint, config_, place.dtype), place.device);
    with_gradient(weights_.lm_head.weight);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      layers_.push_back(
          to_device(load_layer(checkpoint, config_, layer, place.dtype), place.device));
      LayerWeights& own = layers_.back();
      for (Linear* linear : {&own.q_proj, &own.k_proj, &own.v_proj, &own.o_proj, &own.gate_proj,
                             &own.up_proj, &own.down_proj}) {
        with_gradient(linear->weight);
      }
    }
  }

  // [num_layers, 2]: sums over sequences and weights of the squared gradient of the mean NLL, in float32 as there.
  at::Tensor scores(const TokenSet& tokens) {
    std::vector<at::Tensor> squares(2 * layers_.size());
    for (const auto& ids : tokens.sequences) {
      differentiate(ids);
      for (std::size_t i = 0; i < layers_.size(); ++i) {
        add(layers_[i].k_proj.weight, squares[2 * i]);
        add(layers_[i].v_proj.weight, squares[2 * i + 1]);
      }
      clear();
    }
    std::vector<at::Tensor> sums;
    for (const at::Tensor& square : squares) {
      sums.push_back(square.sum(at::kDouble));
    }
    return at::stack(sums).view({-1, 2}).cpu();
  }

 private:
  static void with_gradient(at::Tensor& weight) {
    if (weight.defined()) {
      weight = weight.detach().set_requires_grad(true);
    }
  }
  static void add(const at::Tensor& weight, at::Tensor& sum) {
    const at::Tensor square = weight.grad().to(at::kFloat).square();
    sum = sum.defined() ? sum.add_(square) : square;
  }
  void clear() {
    weights_.lm_head.weight.mutable_grad() = at::Tensor();
    for (LayerWeights& own : layers_) {
      for (Linear* linear : {&own.q_proj, &own.k_proj, &own.v_proj, &own.o_proj, &own.gate_proj,
                             &own.up_proj, &own.down_proj}) {
        if (linear->weight.defined()) {
          linear->weight.mutable_grad() = at::Tensor();
        }
      }
    }
  }

  void differentiate(const std::vector<std::int64_t>& ids) {
    const c10::AutoGradMode grad_mode(true);
    TokenBatch batch = TokenBatch::of({ids});
    batch.ids = batch.ids.to(place_.device);
    FullAttention attention(config_, rope_);
    at::Tensor hidden = embed(config_, weights_, batch.ids, place_.dtype);
    for (int layer = 0; layer < config_.num_layers; ++layer) {
      hidden = run_layer(config_, layers_[static_cast<std::size_t>(layer)], layer, hidden, batch,
                         attention);
    }
    const at::Tensor logits = compute_logits(config_, weights_, hidden);
    const std::int64_t scored = logits.size(0) - 1;
    at::nll_loss(at::log_softmax(logits.narrow(0, 0, scored), 1), batch.ids.narrow(0, 1, scored))
        .backward();
  }

  ComputePlace place_;
  ModelConfig config_;
  RopeTables rope_;
  ModelWeights weights_;
  std::vector<LayerWeights> layers_;
};

at::Tensor scores_of(const std::filesystem::path& file, const ModelConfig& config) {
  const std::vector<double> channels =
      Hdf5Reader(file).doubles("/channel_sum", {config.num_layers, 2, config.kv_dim()});
  return at::tensor(channels, at::kDouble).view({config.num_layers, 2, -1}).sum(2);
}

// Operations a second of a product as large as this model's largest for 4096 tokens.
double product_rate(const ModelConfig& config, const ComputePlace& place) {
  const std::int64_t rows = 4096;
  const at::TensorOptions options = at::TensorOptions(place.dtype).device(place.device);
  const at::Tensor a = at::ones({rows, config.hidden_size}, options);
  const at::Tensor b = at::ones({config.hidden_size, config.intermediate_size}, options);
  std::vector<double> seconds;
  for (int round = 0; round < 5; ++round) {
    seconds.push_back(seconds_of(place.device, [&] { (void)at::mm(a, b); }));
  }
  return 2.0 * static_cast<double>(rows * config.hidden_size * config.intermediate_size) /
         median(seconds);
}

// Forward, backward to activations, and the products of the keys' and values' weights; without attention's own.
double operations(const ModelConfig& config, std::int64_t num_tokens) {
  const std::int64_t kv = 2 * config.num_layers * config.kv_dim() * config.hidden_size;
  return static_cast<double>(num_tokens) *
         (4.0 * static_cast<double>(config.num_parameters()) + 2.0 * static_cast<double>(kv));
}

int run(int argc, char** argv) {
  const Checkpoint checkpoint = Checkpoint::open(argv[1]);
  const ModelConfig config = read_model_config(checkpoint);
  const ComputePlace place = statistics_place(argc > 2 ? argv[2] : "cpu");
  const std::int64_t count = argc > 3 ? std::atoll(argv[3]) : 4;
  const std::int64_t length = argc > 4 ? std::atoll(argv[4]) : 256;
  const TokenSet tokens = random_tokens(count, length, config.vocab_size);
  const std::filesystem::path out =
      std::filesystem::temp_directory_path() / fmt::format("fisher_bench.{}.h5", ::getpid());
  std::vector<double> ours, papers;
  std::int64_t our_bytes = 0, papers_bytes = 0;
  at::Tensor score;
  const at::Tensor of_device =
      at::zeros({1}, place.device);  // its memory can be counted from now on
  for (int round = 0; round < kRounds; ++round) {
    (void)take_peak_bytes(place.device);
    ours.push_back(seconds_of(place.device, [&] { fisher(checkpoint, tokens, out, true, place); }));
    our_bytes = std::max(our_bytes, take_peak_bytes(place.device));
    WholeModel model(checkpoint, place);
    papers.push_back(seconds_of(place.device, [&] { score = model.scores(tokens); }));
    papers_bytes = std::max(papers_bytes, take_peak_bytes(place.device));
  }
  const at::Tensor own = scores_of(out, config);
  std::filesystem::remove(out);
  const double difference = ((own - score).abs() / score).max().item<double>();
  fmt::print(
      "{{\"device\": \"{}\", \"sequences\": {}, \"tokens\": {}, \"kvfisher_seconds\": {:.3f}, "
      "\"papers_seconds\": {:.3f}, \"ratio\": {:.2f}, \"largest_score_difference\": {:.2e}, "
      "\"of_product_rate\": {:.3f}, \"kvfisher_peak_bytes\": {}, \"papers_peak_bytes\": {}, "
      "\"target\": \"G10: ratio 3.5, of product rate 0.60, difference 1e-3, 40 GB\"}}\n",
      place.device.str(), count, length, median(ours), median(papers),
      median(papers) / median(ours), difference,
      operations(config, count * length) / median(ours) / product_rate(config, place), our_bytes,
      papers_bytes);
  return 0;
}

}  // namespace
}  // namespace kvc

int main(int argc, char** argv) {
  if (argc < 2 || argc > 5) {
    fmt::print(stderr, "usage: fisher_bench CHECKPOINT [DEVICE [NUM_SEQUENCES [SEQ_LEN]]]\n");
    return 2;
  }
  try {
    return kvc::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "fisher_bench: error: {}\n", error.what());
    return 1;
  }
}
