#include "runtime/gpu/step_state.h"

#include "runtime/kernels/cuda/sample_tokens.h"

namespace kvc {
namespace {

// Bits of the tokens that texts have.
at::Tensor seen_tokens(const std::vector<std::vector<std::int64_t>>& texts,
                       std::int64_t vocab_size) {
  at::Tensor seen =
      at::zeros({static_cast<std::int64_t>(texts.size()), (vocab_size + 31) / 32}, at::kInt);
  for (std::size_t i = 0; i < texts.size(); ++i) {
    auto* words =
        seen.mutable_data_ptr<std::int32_t>() + static_cast<std::int64_t>(i) * seen.size(1);
    for (const std::int64_t id : texts[i]) {
      const auto word = static_cast<std::uint32_t>(words[id / 32]) | 1u << (id % 32);
      words[id / 32] = static_cast<std::int32_t>(word);
    }
  }
  return seen;
}

// Undefined where steps read nothing of a prompt.
at::Tensor given_tokens(const StepSequences& sequences) {
  const auto count = static_cast<std::int64_t>(sequences.texts.size());
  at::Tensor given;
  for (std::size_t i = 0; i < sequences.texts.size(); ++i) {
    const std::vector<std::int64_t>& text = sequences.texts[i];
    const auto first = sequences.prefilled(i), last = static_cast<std::int64_t>(text.size());
    if (first < last && !given.defined()) {
      given = at::full({count, sequences.capacity}, kNoToken, at::kInt);
    }
    for (std::int64_t position = first; position < last; ++position) {
      given[static_cast<std::int64_t>(i)][position] = text[static_cast<std::size_t>(position)];
    }
  }
  return given;
}

}  // namespace

StepState make_step_state(const ModelConfig& config, const StepSequences& sequences,
                          StepExecutor& executor) {
  const at::Device device = executor.device();
  const auto count = static_cast<std::int64_t>(sequences.texts.size());
  std::vector<std::int32_t> lengths;
  std::vector<std::int64_t> seeds;
  for (std::size_t i = 0; i < sequences.texts.size(); ++i) {
    lengths.push_back(static_cast<std::int32_t>(sequences.prefilled(i)));
    seeds.push_back(static_cast<std::int64_t>(sequences.seeds[i]));
  }
  const at::TensorOptions ints = at::TensorOptions(at::kInt).device(device);
  StepState state;
  state.ids = at::zeros({count}, ints);
  state.num_rows = at::tensor(lengths, at::kInt).to(device);
  state.positions = state.num_rows - 1;
  state.seeds = at::tensor(seeds, at::kLong).to(device);
  state.first_rows = at::zeros({config.num_layers, count}, ints);
  state.tokens = executor.host_zeros(count * sequences.capacity).view({count, sequences.capacity});
  state.logits = at::zeros({count, config.vocab_size}, ints.dtype(at::kFloat));
  if (sequences.sampling.repetition_penalty != 1) {
    state.seen = seen_tokens(sequences.texts, config.vocab_size).to(device);
  }
  if (const at::Tensor given = given_tokens(sequences); given.defined()) {
    state.given = given.to(device);
  }
  return state;
}

StepMemory make_step_memory(const ModelConfig& config, at::ScalarType dtype,
                            std::int64_t num_sequences, std::int64_t capacity,
                            const StepExecutor& executor) {
  const auto zeros = [&](std::int64_t width, at::ScalarType type) {
    return at::zeros({num_sequences, width}, at::TensorOptions(type).device(executor.device()));
  };
  StepMemory memory;
  memory.hidden = zeros(config.hidden_size, at::kFloat);
  memory.added = zeros(config.hidden_size, at::kFloat);
  memory.projected = zeros(config.q_dim() + 2 * config.kv_dim(), at::kFloat);
  memory.normed = zeros(config.hidden_size, dtype);
  memory.query = zeros(config.q_dim(), dtype);
  memory.attended = zeros(config.q_dim(), dtype);
  memory.inner = zeros(config.intermediate_size, dtype);
  const int parts = attention_parts(executor.multiprocessors(),
                                    static_cast<int>(num_sequences * config.num_kv_heads),
                                    static_cast<int>(capacity));
  const std::int64_t heads = parts * config.num_heads;
  memory.maxima = zeros(heads, at::kFloat);
  memory.sums = zeros(heads, at::kFloat);
  memory.outputs = zeros(heads * config.head_dim, at::kFloat);
  memory.partials = {memory.maxima.mutable_data_ptr<float>(), memory.sums.mutable_data_ptr<float>(),
                     memory.outputs.mutable_data_ptr<float>(), parts};
  return memory;
}

}  // namespace kvc
