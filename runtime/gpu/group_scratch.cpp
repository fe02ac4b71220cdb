#include "runtime/gpu/group_scratch.h"

#include <algorithm>
#include <vector>

#include "core/arithmetic.h"
#include "runtime/kernels/cuda/attention_one_pass.h"

namespace kvc {
namespace {

constexpr std::int64_t kRanksPerBlock = 256;  // of the sum_ranks kernel

class ScratchMaker {
 public:
  ScratchMaker(const GpuModel& model, const GpuCache& cache, const StepExecutor& executor,
               std::vector<at::Tensor>& all)
      : model_(model), executor_(executor), sequences_(cache.num_sequences()), all_(all) {}

  PartialScratch dense(std::int64_t tokens) const {
    const std::int64_t blocks = sequences_ * model_.config.num_kv_heads;
    return partials(attention_parts(executor_.multiprocessors(), static_cast<int>(blocks),
                                    static_cast<int>(tokens)),
                    model_.config.head_dim);
  }
  PartialScratch partials(int parts, std::int64_t width) const {
    PartialScratch scratch = make_partials(model_.config, sequences_, parts, width, executor_);
    all_.insert(all_.end(), {scratch.max, scratch.sum, scratch.output});
    return scratch;
  }

  void add_ranks(std::int64_t rank, std::int64_t num_blocks, GroupScratch& scratch) const {
    const std::int64_t heads = model_.config.num_heads;
    scratch.rank = partials(
        static_cast<int>(most_rank_parts(executor_.multiprocessors(), sequences_, num_blocks, rank,
                                         scratch.max_tiles * kScaledRows)),
        rank);
    scratch.combined = zeros({sequences_, heads, rank}, at::kFloat);
    for (int segment = 0; segment < 2; ++segment) {
      scratch.log_sum.push_back(zeros({sequences_, heads}, at::kFloat));
      scratch.projected.push_back(zeros({sequences_, heads, model_.config.head_dim}, at::kFloat));
    }
    scratch.latent = zeros({sequences_, rank}, at::kFloat);
    scratch.weighted = zeros({sequences_, rank}, at::kFloat);
    scratch.score = zeros({sequences_, 1}, at::kFloat);
    scratch.first_latent = zeros({sequences_, rank}, model_.dtype);
    scratch.last_latent = zeros({sequences_, rank}, model_.dtype);
  }

  at::Tensor zeros(const std::vector<std::int64_t>& shape, at::ScalarType dtype) const {
    return all_.emplace_back(at::zeros(shape, at::TensorOptions(dtype).device(model_.device())));
  }

 private:
  const GpuModel& model_;
  const StepExecutor& executor_;
  std::int64_t sequences_;
  std::vector<at::Tensor>& all_;
};

}  // namespace

PartialScratch make_partials(const ModelConfig& config, std::int64_t num_sequences, int parts,
                             std::int64_t width, const StepExecutor& executor) {
  const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(executor.device());
  const std::int64_t heads = config.num_heads;
  PartialScratch scratch{at::zeros({num_sequences, parts, heads}, floats),
                         at::zeros({num_sequences, parts, heads}, floats),
                         at::zeros({num_sequences, parts, heads, width}, floats)};
  scratch.partials = {scratch.max.mutable_data_ptr<float>(), scratch.sum.mutable_data_ptr<float>(),
                      scratch.output.mutable_data_ptr<float>(), parts};
  return scratch;
}

std::int64_t whole_ranks(std::int64_t rank) { return round_up(rank, kRankStep); }

std::int64_t most_rank_parts(int multiprocessors, std::int64_t num_sequences,
                             std::int64_t num_blocks, std::int64_t rank, std::int64_t tokens) {
  const std::int64_t blocks =
      num_sequences * num_blocks * ((rank + kRanksPerBlock - 1) / kRanksPerBlock);
  return std::max(
      attention_parts(multiprocessors, static_cast<int>(blocks), static_cast<int>(tokens)),
      most_one_pass_parts(multiprocessors, static_cast<int>(num_sequences),
                          static_cast<int>((tokens + kScaledRows - 1) / kScaledRows)));
}

void add_tile_weights(const GpuModel& model, std::int64_t num_sequences, GroupScratch& scratch) {
  const std::int64_t rows = num_sequences * scratch.max_tiles * model.config.num_heads;
  const at::TensorOptions floats = at::TensorOptions(at::kFloat).device(model.device());
  scratch.weights = at::zeros({rows, kScaledRows}, floats.dtype(model.dtype));
  scratch.tile_max = at::zeros({rows}, floats);
  scratch.tile_sum = at::zeros({rows}, floats);
}

GroupScratch make_group_scratch(const GpuModel& model, const GpuCache& cache, std::int64_t capacity,
                                const StepExecutor& executor) {
  GroupScratch scratch;
  scratch.max_tiles = (capacity + kScaledRows - 1) / kScaledRows;
  const std::vector<LatentGroup>& groups = cache.plan().groups;
  if (groups.empty() && !cache.has_codes()) {
    return scratch;
  }
  const ScratchMaker maker(model, cache, executor, scratch.all);
  for (PartialScratch& dense : scratch.dense) {
    dense = maker.dense(capacity);
  }
  std::int64_t rank = 0, num_blocks = 1;
  for (const LatentGroup& group : groups) {
    rank = std::max(rank, group.rank);
  }
  for (const GpuTiles& tiles : cache.tiles()) {
    rank = std::max(rank, coded_width(tiles.most_coefficients()));
    num_blocks = std::max<std::int64_t>(num_blocks, tiles.layers.num_blocks);
  }
  if (rank > 0) {
    maker.add_ranks(whole_ranks(rank), num_blocks, scratch);
  }
  for (at::Tensor& first : scratch.first_apart) {
    first = maker.zeros({cache.num_sequences()}, at::kInt);
  }
  if (!cache.tiles().empty() && model.dtype != at::kHalf) {
    scratch.query = maker.zeros({cache.num_sequences(), model.config.q_dim()}, at::kHalf);
  }
  return scratch;
}

}  // namespace kvc
