// Rows that a step appends to stores, against plain loops in double precision.
#include <cmath>
#include <cstdint>

#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

std::size_t at(int row, int width, int column) {
  return static_cast<std::size_t>(row) * static_cast<std::size_t>(width) +
         static_cast<std::size_t>(column);
}

struct AppendShape {
  int num_heads, num_kv_heads, num_pairs;
  bool norms, norm_whole, interleaved;
};

// What the norm divides a key's head by.
float key_rms(const AppendShape& shape, const float* keys, int head) {
  constexpr int kDim = 32;
  const int first = shape.norm_whole ? 0 : head * kDim,
            count = shape.norm_whole ? shape.num_kv_heads * kDim : kDim;
  double square = 0;
  for (int i = first; i < first + count; ++i) {
    square += static_cast<double>(keys[i]) * keys[i] / count;
  }
  return static_cast<float>(std::sqrt(square + 1e-6));
}

// The head's numbers as attention reads them.
std::vector<double> appended_head(const AppendShape& shape, const float* all, int heads, int head,
                                  const std::vector<float>* norm, const CaseAngles* angles,
                                  int position) {
  constexpr int kDim = 32;
  double square = 0;
  const int first = shape.norm_whole ? 0 : head * kDim,
            count = shape.norm_whole ? heads * kDim : kDim;
  for (int i = first; i < first + count; ++i) {
    square += static_cast<double>(all[i]) * all[i] / count;
  }
  std::vector<double> x;
  for (int i = 0; i < kDim; ++i) {
    const std::size_t channel = static_cast<std::size_t>(shape.norm_whole ? head * kDim + i : i);
    x.push_back(all[head * kDim + i] *
                (norm == nullptr ? 1.0 : (*norm)[channel] / std::sqrt(square + 1e-6)));
  }
  for (int pair = 0; angles != nullptr && pair < shape.num_pairs; ++pair) {
    const std::size_t angle = at(position, shape.num_pairs, pair);
    double& a = x[static_cast<std::size_t>(shape.interleaved ? 2 * pair : pair)];
    double& b =
        x[static_cast<std::size_t>(shape.interleaved ? 2 * pair + 1 : pair + shape.num_pairs)];
    const double turned = a * angles->cos[angle] - b * angles->sin[angle];
    b = b * angles->cos[angle] + a * angles->sin[angle];
    a = turned;
  }
  return x;
}

std::string append_case(const AppendShape& shape, KernelBackend& backend) {
  constexpr int kDim = 32, kSequences = 2, kWindow = 6;
  const int heads = shape.num_heads + 2 * shape.num_kv_heads;
  const std::vector<std::int32_t> positions = {33, 4};
  const std::vector<float> projected = case_numbers(kSequences * heads * kDim, 1);
  const std::vector<float> query_norm = case_numbers(shape.num_heads * kDim, 2),
                           key_norm = case_numbers(shape.num_heads * kDim, 3);
  const CaseAngles angles(backend, 64, shape.num_pairs, shape.interleaved);
  const int width = shape.num_kv_heads * kDim;
  std::vector<const void*> blocks[2];  // of 32 rows, two of each sequence
  for (auto& of_store : blocks) {
    for (int i = 0; i < 2 * kSequences; ++i) {
      of_store.push_back(backend.unwritten<std::uint16_t>(static_cast<std::size_t>(32 * width)));
    }
  }
  AppendRows params{.projected = backend.upload(projected),
                    .num_sequences = kSequences,
                    .num_heads = shape.num_heads,
                    .num_kv_heads = shape.num_kv_heads,
                    .head_dim = kDim,
                    .query_norm = shape.norms ? backend.upload(query_norm) : nullptr,
                    .key_norm = shape.norms ? backend.upload(key_norm) : nullptr,
                    .norm_whole = shape.norm_whole,
                    .norm_epsilon = 1e-6f,
                    .rope = angles.device,
                    .positions = backend.upload(positions),
                    .key = {backend.upload(blocks[0]), 2, 32, width},
                    .value = {backend.upload(blocks[1]), 2, 32, width},
                    .first_rows = backend.unwritten<std::int32_t>(kSequences),
                    .window = kWindow};
  std::vector<const void*> rms_blocks;
  for (int i = 0; i < 2 * kSequences && shape.norms; ++i) {
    rms_blocks.push_back(
        backend.unwritten<float>(static_cast<std::size_t>(32 * shape.num_kv_heads)));
  }
  if (shape.norms) {
    params.key_rms = {backend.upload(rms_blocks), 2, 32, shape.num_kv_heads};
  }
  auto* query = backend.unwritten<std::uint16_t>(
      static_cast<std::size_t>(kSequences * shape.num_heads * kDim));
  params.query = query;
  auto* query_float16 = backend.unwritten<std::uint16_t>(
      static_cast<std::size_t>(kSequences * shape.num_heads * kDim));
  params.query_float16 = shape.norms ? query_float16 : nullptr;
  backend.run(params);
  if (backend.download(params.first_rows, kSequences) != std::vector<std::int32_t>({28, 0})) {
    return "the window's first rows";
  }
  const auto floats = [&](const std::uint16_t* from) {
    std::vector<float> numbers;
    for (const std::uint16_t bits : backend.download(from, kDim)) {
      numbers.push_back(to_float(BFloat16{bits}));
    }
    return numbers;
  };
  const auto halves = [&](const std::uint16_t* from) {
    std::vector<float> numbers;
    for (const std::uint16_t bits : backend.download(from, kDim)) {
      numbers.push_back(to_float(Float16{bits}));
    }
    return numbers;
  };
  for (int sequence = 0; sequence < kSequences; ++sequence) {
    const int position = positions[static_cast<std::size_t>(sequence)];
    const float* token = projected.data() + sequence * heads * kDim;
    for (int head = 0; head < heads; ++head) {
      const bool is_query = head < shape.num_heads,
                 is_key = !is_query && head < shape.num_heads + shape.num_kv_heads;
      const int of_kind = is_query ? head
                          : is_key ? head - shape.num_heads
                                   : head - shape.num_heads - shape.num_kv_heads;
      const float* kind = token + (head - of_kind) * kDim;
      AppendShape own = shape;
      own.norm_whole = shape.norm_whole && (is_query || is_key);
      const std::vector<double> exact =
          appended_head(own, kind, is_query ? shape.num_heads : shape.num_kv_heads, of_kind,
                        !shape.norms || !(is_query || is_key) ? nullptr
                        : is_query                            ? &query_norm
                                                              : &key_norm,
                        is_query || is_key ? &angles : nullptr, position);
      if (is_key && shape.norms) {
        const auto block = static_cast<std::size_t>(2 * sequence + position / 32);
        const std::string difference =
            compare("rms of head " + std::to_string(head),
                    backend.download(static_cast<const float*>(rms_blocks[block]) +
                                         position % 32 * shape.num_kv_heads + of_kind,
                                     1),
                    {key_rms(shape, kind, of_kind)}, 1e-4);
        if (!difference.empty()) {
          return difference;
        }
      }
      const std::uint16_t* from = query + (sequence * shape.num_heads + head) * kDim;
      if (!is_query) {
        const auto block = static_cast<std::size_t>(2 * sequence + position / 32);
        from = static_cast<const std::uint16_t*>(blocks[is_key ? 0 : 1][block]) +
               position % 32 * width + of_kind * kDim;
      }
      const std::string name =
          "head " + std::to_string(head) + " of sequence " + std::to_string(sequence);
      const std::vector<float> expected(exact.begin(), exact.end());
      std::string difference = compare(name, floats(from), expected, 0.03);
      if (difference.empty() && is_query && params.query_float16 != nullptr) {
        difference =
            compare(name + " in float16", halves(query_float16 + (from - query)), expected, 0.004);
      }
      if (!difference.empty()) {
        return difference;
      }
    }
  }
  return {};
}

// One query head of a token at each of these positions, and no window yet.
AppendRows query_alone(KernelBackend& backend, const std::vector<std::int32_t>& positions) {
  constexpr int kDim = 32;
  const int sequences = static_cast<int>(positions.size());
  AppendRows params;
  params.projected = backend.upload(case_numbers(sequences * kDim, 1));
  params.num_sequences = sequences;
  params.num_heads = 1;
  params.head_dim = kDim;
  params.positions = backend.upload(positions);
  params.query = backend.unwritten<std::uint16_t>(static_cast<std::size_t>(sequences * kDim));
  return params;
}

// A window of 6 over 2 first tokens, 32 codes and the others, whose last is at `positions`.
std::string window_case(KernelBackend& backend) {
  const std::vector<std::int32_t> positions = {5, 20, 37, 39, 60}, codes = {0, 0, 32, 32, 32},
                                  of_codes = {0, 0, 30, 32, 32}, others = {0, 15, 2, 2, 23};
  AppendRows params = query_alone(backend, positions);
  params.first_rows = backend.unwritten<std::int32_t>(positions.size());
  params.window = 6;
  params.apart[0] = {.num_rows = backend.upload(codes),
                     .first_rows = backend.unwritten<std::int32_t>(positions.size())};
  params.sinks = 2;
  backend.run(params);
  return backend.download(params.first_rows, positions.size()) != others ? "first of other rows"
         : backend.download(params.apart[0].first_rows, positions.size()) != of_codes
             ? "first codes"
             : std::string();
}

// The first code is read apart: a window of 40, or none, over 32 or 64 codes and the others, whose last is at `positions`.
std::string first_code_case(bool has_window, KernelBackend& backend) {
  const std::vector<std::int32_t> positions = {5, 33, 38, 70}, codes = {0, 32, 32, 64},
                                  first = {0, 1, 1, has_window ? 31 : 1},
                                  very_first = {0, 1, 1, has_window ? 0 : 1};
  const auto numbers = [&] { return backend.unwritten<std::int32_t>(positions.size()); };
  AppendRows params = query_alone(backend, positions);
  params.first_rows = has_window ? numbers() : nullptr;
  params.window = has_window ? 40 : 0;
  params.apart[0] = {
      .num_rows = backend.upload(codes), .first_rows = numbers(), .very_first = numbers()};
  backend.run(params);
  const auto differs = [&](const std::int32_t* found, const std::vector<std::int32_t>& expected) {
    return backend.download(found, positions.size()) != expected;
  };
  return differs(params.apart[0].first_rows, first)               ? "first codes"
         : differs(params.apart[0].very_first, very_first)        ? "very first code"
         : has_window && differs(params.first_rows, {0, 0, 0, 0}) ? "first of other rows"
                                                                  : std::string();
}

// A window of 6 over 2 first tokens, those at every third position behind them, the 32 after each of these, and what is
// exact: 3 + 2 rows of the first kind stand in two blocks.
std::string decided_window_case(KernelBackend& backend) {
  constexpr int kSequences = 3, kDecided = 99;
  const std::vector<std::int32_t> positions = {5, 60, 110};
  std::vector<std::int32_t> third, others;
  for (int position = 2; position < 2 + kDecided; ++position) {
    (position % 3 == 2 ? third : others).push_back(position);
  }
  const auto rows_of = [&](const std::vector<std::int32_t>& of) {
    std::vector<const void*> blocks;
    for (int sequence = 0; sequence < kSequences; ++sequence) {
      for (std::size_t first = 0; first < 96; first += 32) {
        std::vector<std::int32_t> block(32);
        for (std::size_t i = 0; i < 32 && first + i < of.size(); ++i) {
          block[i] = of[first + i];
        }
        blocks.push_back(backend.upload(block));
      }
    }
    return DeviceRows{backend.upload(blocks), 3, 32, 1};
  };
  const auto apart = [&](const std::vector<std::int32_t>& of) {
    const auto count = static_cast<std::int32_t>(of.size());
    return ApartRows{.num_rows = backend.upload(std::vector<std::int32_t>{0, count, count}),
                     .positions = rows_of(of),
                     .first_rows = backend.unwritten<std::int32_t>(kSequences)};
  };
  AppendRows params = query_alone(backend, positions);
  params.first_rows = backend.unwritten<std::int32_t>(kSequences);
  params.window = 6;
  params.apart[0] = apart(third);
  params.apart[1] = apart(others);
  params.sinks = 2;
  backend.run(params);
  // For positions from 0, 55 and 105 on.
  return backend.download(params.apart[0].first_rows, kSequences) !=
                 std::vector<std::int32_t>{0, 18, 33}
             ? "first of every third"
         : backend.download(params.apart[1].first_rows, kSequences) !=
                 std::vector<std::int32_t>{0, 35, 66}
             ? "first of the others"
         : backend.download(params.first_rows, kSequences) != std::vector<std::int32_t>{0, 2, 6}
             ? "first exact rows"
             : std::string();
}

// Rows 33 and 4 of two sequences' stores of 72 numbers.
std::string latents_case(bool are_floats, KernelBackend& backend) {
  constexpr int kWidth = 72, kSequences = 2;
  const std::vector<std::int32_t> rows = {33, 4};
  const std::vector<float> numbers = case_numbers(kSequences * kWidth, 1);
  std::vector<const void*> blocks;
  for (int i = 0; i < 2 * kSequences; ++i) {
    blocks.push_back(backend.unwritten<float>(32 * kWidth));
  }
  backend.run(AppendLatents{.from = backend.upload(numbers),
                            .num_sequences = kSequences,
                            .rows = backend.upload(rows),
                            .to = {backend.upload(blocks), 2, 32, kWidth, DeviceElement::kFloat16},
                            .are_floats = are_floats});
  std::vector<float> stored;
  for (std::size_t sequence = 0; sequence < kSequences; ++sequence) {
    const int row = rows[sequence];
    const void* block = blocks[2 * sequence + static_cast<std::size_t>(row) / 32];
    const int first = row % 32 * kWidth;
    if (are_floats) {
      const auto own = backend.download(static_cast<const float*>(block) + first, kWidth);
      stored.insert(stored.end(), own.begin(), own.end());
      continue;
    }
    for (const std::uint16_t bits :
         backend.download(static_cast<const std::uint16_t*>(block) + first, kWidth)) {
      stored.push_back(to_float(Float16{bits}));
    }
  }
  return compare("latents", stored, numbers, are_floats ? 1e-7 : 1e-3);
}

}  // namespace

std::vector<KernelCase> append_cases() {
  std::vector<KernelCase> cases;
  const auto add = [&](const std::string& name, const AppendShape& shape) {
    cases.push_back({"append_" + name,
                     [shape](KernelBackend& backend) { return append_case(shape, backend); }});
  };
  add("plain", {4, 2, 16, false, false, false});
  add("head_norms_partial_rope", {3, 1, 8, true, false, false});
  add("whole_norms_interleaved", {4, 2, 16, true, true, true});
  add("query_alone_no_rope", {5, 0, 0, false, false, false});
  cases.push_back({"append_window_over_codes", window_case});
  cases.push_back({"append_window_over_decided", decided_window_case});
  for (const bool has_window : {false, true}) {
    cases.push_back(
        {has_window ? "append_window_over_first_code" : "append_first_code",
         [has_window](KernelBackend& backend) { return first_code_case(has_window, backend); }});
  }
  for (const bool are_floats : {false, true}) {
    cases.push_back(
        {are_floats ? "append_latents_float32" : "append_latents",
         [are_floats](KernelBackend& backend) { return latents_case(are_floats, backend); }});
  }
  return cases;
}

}  // namespace kvc::testing
