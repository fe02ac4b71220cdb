#include "model/layer_stream.h"

#include <c10/core/GradMode.h>

#include "core/error.h"
#include "core/interrupt.h"

namespace kvc {
namespace {

std::vector<TokenBatch> make_batches(const TokenSet& tokens, std::int64_t batch_tokens) {
  std::vector<TokenBatch> batches;
  std::vector<std::vector<std::int64_t>> sequences;
  std::int64_t num_tokens = 0;
  const auto flush = [&] {
    if (!sequences.empty()) {
      batches.push_back(TokenBatch::of(sequences));
    }
    sequences.clear();
    num_tokens = 0;
  };
  for (const auto& sequence : tokens.sequences) {
    KVC_CHECK(!sequence.empty(), "the token set holds an empty sequence");
    const auto length = static_cast<std::int64_t>(sequence.size());
    if (num_tokens + length > batch_tokens) {
      flush();
    }
    sequences.push_back(sequence);
    num_tokens += length;
  }
  flush();
  return batches;
}

// Error naming part(i) for the first i where finite[i], a bool on any device, is false.
void check_finite(const Checkpoint& checkpoint, const std::vector<at::Tensor>& finite,
                  const std::function<std::string(std::size_t)>& part) {
  for (std::size_t i = 0; i < finite.size(); ++i) {
    KVC_CHECK(finite[i].item<bool>(), "{}: {} not finite; do the weights hold NaN or infinity?",
              checkpoint.directory().string(), part(i));
  }
}

// Shows every layer's projections to the visitor on their way to attention.
class VisitedAttention : public Attention {
 public:
  VisitedAttention(const ModelConfig& config, const RopeTables& rope, int batch_index,
                   const LayerStream::Visitor& visit)
      : attention_(config, rope), batch_index_(batch_index), visit_(visit) {}

  at::Tensor attend(int layer, const AttentionInput& input, const TokenBatch& batch) override {
    if (visit_) {
      visit_({layer, batch_index_, batch, input.weights, input.hidden, input.query, input.key,
              input.value});
    }
    return attention_.attend(layer, input, batch);
  }

 private:
  FullAttention attention_;
  int batch_index_;
  const LayerStream::Visitor& visit_;
};

}  // namespace

struct LayerStream::State {
  std::vector<TokenBatch> batches;
  std::vector<at::Tensor> boundary;  // per batch [num_tokens, hidden_size], rows of one tensor
};

LayerStream::LayerStream(const Checkpoint& checkpoint, const ModelConfig& config,
                         const TokenSet& tokens, LayerStreamOptions options)
    : checkpoint_(checkpoint),
      config_(config),
      options_(std::move(options)),
      rope_(config, options_.place.dtype),
      state_(std::make_unique<State>()) {
  state_->batches = make_batches(tokens, options_.batch_tokens);
  const std::vector<std::int64_t> shape = {tokens.num_tokens(), config.hidden_size};
  const at::Tensor all = make_pass_tensor(shape, options_.place.dtype, options_.place,
                                          options_.spill_directory, options_.memory_bytes);
  std::int64_t row = 0;
  for (const TokenBatch& batch : state_->batches) {
    const at::Tensor rows = all.narrow(0, row, batch.ids.size(0));
    const at::Tensor embeddings =
        load_embeddings(checkpoint, config, batch.ids, options_.place.dtype);
    check_finite(checkpoint, {embeddings.isfinite().all()},
                 [](std::size_t) { return "the embeddings are"; });
    rows.copy_(embeddings);
    state_->boundary.push_back(rows);
    row += batch.ids.size(0);
  }
  wait_for_stream(options_.place.device);
}

LayerStream::~LayerStream() = default;

int LayerStream::num_batches() const { return static_cast<int>(state_->batches.size()); }

const TokenBatch& LayerStream::batch(int index) const {
  return state_->batches[static_cast<std::size_t>(index)];
}

at::Tensor LayerStream::boundary(int batch_index) const {
  return state_->boundary[static_cast<std::size_t>(batch_index)];
}

void LayerStream::advance(int num_layers, const Visitor& visit) {
  run(num_layers, visit, true);
  next_layer_ += num_layers;
}

void LayerStream::peek(int num_layers, const Visitor& visit) { run(num_layers, visit, false); }

void LayerStream::run(int num_layers, const Visitor& visit, bool move) {
  KVC_CHECK(num_layers >= 0 && next_layer_ + num_layers <= config_.num_layers,
            "layers {}-{} of {} do not exist", next_layer_, next_layer_ + num_layers - 1,
            config_.num_layers);
  const c10::NoGradGuard no_grad;
  std::vector<LayerWeights> weights;
  for (int layer = next_layer_; layer < next_layer_ + num_layers; ++layer) {
    weights.push_back(to_device(load_layer(checkpoint_, config_, layer, options_.place.dtype),
                                options_.place.device));
  }
  std::vector<at::Tensor> finite(weights.size());
  for (int index = 0; index < num_batches(); ++index) {
    check_interrupt();
    VisitedAttention attention(config_, rope_, index, visit);
    at::Tensor hidden_states = boundary(index).to(options_.place.device);
    for (std::size_t offset = 0; offset < weights.size(); ++offset) {
      hidden_states = run_layer(config_, weights[offset], next_layer_ + static_cast<int>(offset),
                                hidden_states, batch(index), attention);
      const at::Tensor all = hidden_states.isfinite().all();
      finite[offset] = finite[offset].defined() ? finite[offset].logical_and(all) : all;
    }
    if (move) {
      boundary(index).copy_(hidden_states);
    }
  }
  wait_for_stream(options_.place.device);
  check_finite(checkpoint_, finite, [&](std::size_t offset) {
    return fmt::format("layer {}: its output is", next_layer_ + static_cast<int>(offset));
  });
}

}  // namespace kvc
