#include "tests/runtime/kernels/cuda/gpu_bench_inputs.h"

#include <cuda_runtime_api.h>

#include <cmath>
#include <random>

namespace kvc::testing {
namespace {

constexpr int kBlockRows = 64;

int round_up(int count, int step) { return (count + step - 1) / step * step; }

// bfloat16 numbers that are finite and of order one as float16 too.
std::vector<std::uint16_t> random_numbers(std::size_t count) {
  std::mt19937 generator(1);
  std::uniform_real_distribution<float> uniform(0.25f, 3.0f);
  std::vector<std::uint16_t> numbers(count);
  for (std::uint16_t& x : numbers) {
    const float sign = generator() % 2 == 0 ? 1.0f : -1.0f;
    x = narrow_bits(BFloat16{}, sign * uniform(generator));
  }
  return numbers;
}

}  // namespace

BenchInputs::BenchInputs() : numbers_(static_cast<std::uint8_t*>(memory_.allocate(kBytes))) {
  const std::vector<std::uint16_t> part = random_numbers(std::size_t{1} << 22);
  memory_.write(numbers_, part.data(), 2 * part.size());
  for (std::int64_t done = 2 * static_cast<std::int64_t>(part.size()); done < kBytes; done *= 2) {
    check_cuda(cudaMemcpy(numbers_ + done, numbers_, static_cast<std::size_t>(done),
                          cudaMemcpyDeviceToDevice),
               "copy on the GPU");
  }
  check_cuda(cudaDeviceGetAttribute(&multiprocessors_, cudaDevAttrMultiProcessorCount, 0),
             "device");
}

std::int64_t BenchInputs::row_bytes(const DeviceRows& rows) {
  return row_stride(rows) + (is_coded(rows.element) && rows.per_channel ? rows.width / 8 : 0);
}

const std::int32_t* BenchInputs::lengths(const Batch& batch) {
  return memory_.upload(
      std::vector<std::int32_t>(static_cast<std::size_t>(batch.num_sequences), batch.num_tokens));
}

void BenchInputs::set_angles(int num_positions, const float*& cos, const float*& sin) {
  std::vector<float> cosines, sines;
  for (int position = 0; position < num_positions; ++position) {
    for (int pair = 0; pair < kHeadDim / 2; ++pair) {
      const double angle = position * std::pow(500000.0, -2.0 * pair / kHeadDim);
      cosines.push_back(static_cast<float>(std::cos(angle)));
      sines.push_back(static_cast<float>(std::sin(angle)));
    }
  }
  cos = memory_.upload(cosines);
  sin = memory_.upload(sines);
}

DeviceRows BenchInputs::rows(const Batch& batch, DeviceElement element, int width, bool per_channel,
                             std::int64_t offset) {
  DeviceRows rows;
  rows.element = element;
  rows.width = width;
  rows.per_channel = per_channel;
  rows.block_rows = kBlockRows;
  rows.max_blocks = (batch.num_tokens + kBlockRows - 1) / kBlockRows;
  const std::int64_t block_bytes = (row_bytes(rows) * kBlockRows + 255) / 256 * 256;
  std::vector<const void*> table;
  for (std::int64_t block = 0; block < batch.num_sequences * rows.max_blocks; ++block) {
    if (offset + block_bytes > kBytes) {
      offset = 0;
    }
    table.push_back(numbers_ + offset);
    offset += block_bytes;
  }
  rows.blocks = memory_.upload(table);
  return rows;
}

int BenchInputs::parts(const Batch& batch, int blocks_per_part) const {
  return attention_parts(multiprocessors_, blocks_per_part, batch.num_tokens);
}

DevicePartials BenchInputs::partials(const Batch& batch, int num_parts, int width) {
  DevicePartials partials;
  partials.num_parts = num_parts;
  const std::size_t rows = static_cast<std::size_t>(batch.num_sequences) *
                           static_cast<std::size_t>(partials.num_parts) * kHeads;
  partials.max = static_cast<float*>(memory_.allocate(4 * rows));
  partials.sum = static_cast<float*>(memory_.allocate(4 * rows));
  partials.output =
      static_cast<float*>(memory_.allocate(4 * rows * static_cast<std::size_t>(width)));
  return partials;
}

DenseAttention BenchInputs::dense(const Batch& batch, DeviceElement store, int num_sources) {
  DenseAttention params;
  params.query = numbers_;
  params.num_sources = num_sources;
  const std::int64_t each = kBytes / (2 * num_sources);
  for (int source = 0; source < num_sources; ++source) {
    AttendedRows& rows = params.rows[source];
    rows.raw_key = is_coded(store);
    rows.key = this->rows(batch, store, kWidth, is_coded(store), 2 * source * each);
    rows.value = this->rows(batch, store, kWidth, false, (2 * source + 1) * each);
    if (num_sources == 2) {
      rows.key_factor = memory_.upload(std::vector<float>(kWidth, 0.5f));
      rows.value_factor = memory_.upload(std::vector<float>(kWidth, 0.5f));
    }
  }
  if (is_coded(store)) {
    set_angles(batch.num_tokens, params.raw_keys.rope.cos, params.raw_keys.rope.sin);
    params.raw_keys.rope.num_pairs = kHeadDim / 2;
  }
  params.num_rows = lengths(batch);
  params.num_sequences = batch.num_sequences;
  params.num_heads = kHeads;
  params.num_kv_heads = kKvHeads;
  params.head_dim = kHeadDim;
  params.scale = 0.088f;
  params.partials = partials(batch, parts(batch, batch.num_sequences * kKvHeads), kHeadDim);
  return params;
}

CombinePartials BenchInputs::combine(const DevicePartials& partials, int num_sequences, int width) {
  CombinePartials params;
  params.sources[0] = partials;
  params.num_sources = 1;
  params.num_sequences = num_sequences;
  params.num_heads = kHeads;
  params.width = width;
  params.output_float = static_cast<float*>(
      memory_.allocate(std::size_t{4} * kHeads * static_cast<std::size_t>(num_sequences * width)));
  params.log_sum = static_cast<float*>(
      memory_.allocate(std::size_t{4} * kHeads * static_cast<std::size_t>(num_sequences)));
  return params;
}

KeyPairs BenchInputs::pairs(int first, int count, int padded) {
  std::vector<std::int32_t> channels, angles;
  for (int head = 0; head < kKvHeads; ++head) {
    for (int second = 0; second < 2; ++second) {
      for (int pair = 0; pair < padded; ++pair) {
        channels.push_back(pair < count ? first + pair + second * kHeadDim / 2 : -1);
      }
    }
    for (int pair = 0; pair < padded; ++pair) {
      angles.push_back(pair < count ? first + pair : -1);
    }
  }
  return {padded, memory_.upload(channels), memory_.upload(angles), nullptr};
}

RankAttention BenchInputs::rank_params(const Batch& batch, int rank, int sums_width) {
  RankAttention params;
  params.query = numbers_;
  params.keys.projection = numbers_ + kBytes / 2;
  params.keys.rank_stride = round_up(rank, 32);
  set_angles(batch.num_tokens, params.cos, params.sin);
  params.num_angles = kHeadDim / 2;
  params.num_rows = lengths(batch);
  params.num_sequences = batch.num_sequences;
  params.num_heads = kHeads;
  params.num_kv_heads = kKvHeads;
  params.head_dim = kHeadDim;
  params.scale = 0.001f;
  params.max_tiles = (batch.num_tokens + 31) / 32;
  const std::size_t tiles = static_cast<std::size_t>(batch.num_sequences) *
                            static_cast<std::size_t>(params.max_tiles) * kHeads;
  params.weights = memory_.allocate(64 * tiles);
  params.tile_max = static_cast<float*>(memory_.allocate(4 * tiles));
  params.tile_sum = static_cast<float*>(memory_.allocate(4 * tiles));
  params.sums_width = round_up(sums_width, 32);
  params.partials = partials(batch, parts(batch, batch.num_sequences * ((sums_width + 255) / 256)),
                             params.sums_width);
  return params;
}

RankAttention BenchInputs::latents(const Batch& batch, int key_rank, int value_rank, bool shared,
                                   int stored) {
  RankAttention params = rank_params(batch, key_rank, value_rank);
  params.latents =
      rows(batch, DeviceElement::kBFloat16, shared ? key_rank : key_rank + value_rank, false, 0);
  params.key_rank = key_rank;
  params.value_column = shared ? 0 : key_rank;
  params.value_rank = value_rank;
  const int rebuilt = kHeadDim / 2 - stored;
  params.keys.pairs = pairs(stored, rebuilt, rebuilt <= 24 ? 24 : 64);
  if (stored > 0) {
    params.stored.pairs = pairs(0, stored, round_up(stored, 8));
    params.stored.num_stored = stored;
    std::vector<std::int32_t> columns;
    for (int head = 0; head < kKvHeads; ++head) {
      columns.push_back(2 * stored * head);
    }
    params.stored.first_column = memory_.upload(columns);
  }
  return params;
}

ProjectValues BenchInputs::project(int num_sequences, int sums_width, int rank,
                                   DeviceElement element) {
  ProjectValues project;
  project.sums_width = sums_width;
  project.projection = numbers_ + kBytes / 4;
  project.element = element;
  project.rank = rank;
  project.rank_stride = sums_width;
  project.num_sequences = num_sequences;
  project.num_heads = kHeads;
  project.num_kv_heads = kKvHeads;
  project.head_dim = kHeadDim;
  project.output = static_cast<float*>(memory_.allocate(std::size_t{4} * kHeads * kHeadDim *
                                                        static_cast<std::size_t>(num_sequences)));
  return project;
}

}  // namespace kvc::testing
