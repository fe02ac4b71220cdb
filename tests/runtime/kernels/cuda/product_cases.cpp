// Projections, nearest rows, scores and chosen rows, against plain loops in double precision.
#include <cmath>
#include <string>
#include <vector>

#include "tests/runtime/kernels/cuda/case_inputs.h"
#include "tests/runtime/kernels/cuda/kernel_cases.h"

namespace kvc::testing {
namespace {

// A random matrix on both sides, its columns in parts side by side.
struct Matrix {
  Matrix(KernelBackend& backend, int num_rows, int num_parts, int part_width, DeviceElement element,
         unsigned seed)
      : columns(num_parts * part_width) {
    for (int part = 0; part < num_parts; ++part) {
      const auto part_seed = seed + 100 * static_cast<unsigned>(part);
      parts.push_back(
          rounded(case_numbers(std::int64_t{num_rows} * part_width, part_seed), element));
      device.parts[part] = backend.upload(narrowed(parts.back(), element));
    }
    device.num_parts = num_parts;
    device.part_width = part_width;
    device.stride = part_width;
    device.num_rows = num_rows;
  }
  double at(int row, int column) const {
    return parts[static_cast<std::size_t>(column / device.part_width)]
                [static_cast<std::size_t>(row * device.part_width + column % device.part_width)];
  }
  double product(int row, const Matrix& other, int other_row) const {
    double sum = 0;
    for (int column = 0; column < columns; ++column) {
      sum += at(row, column) * other.at(other_row, column);
    }
    return sum;
  }

  int columns;
  std::vector<std::vector<float>> parts;
  ProductRows device;
};

struct ProjectShape {
  int num_tokens, num_parts, part_width, rank;
  DeviceElement element;
};

std::string project_case(const ProjectShape& shape, KernelBackend& backend) {
  const Matrix y(backend, shape.num_tokens, shape.num_parts, shape.part_width, shape.element, 1);
  const Matrix p(backend, shape.rank, 1, y.columns, shape.element, 2);
  const std::vector<float> offset = case_numbers(shape.rank, 3);
  const auto count = static_cast<std::size_t>(shape.num_tokens * shape.rank);
  auto* halves = backend.unwritten<std::uint16_t>(count);
  auto* floats = backend.unwritten<float>(count);
  backend.run(ProjectRows{.rows = y.device,
                          .projection = p.device,
                          .offset = backend.upload(offset),
                          .element = shape.element,
                          .output = halves,
                          .output_element = DeviceElement::kFloat16,
                          .output_float = floats});
  std::vector<float> expected, from_halves;
  for (int token = 0; token < shape.num_tokens; ++token) {
    for (int i = 0; i < shape.rank; ++i) {
      expected.push_back(
          static_cast<float>(y.product(token, p, i) + offset[static_cast<std::size_t>(i)]));
    }
  }
  for (const std::uint16_t bits : backend.download(halves, count)) {
    from_halves.push_back(to_float(Float16{bits}));
  }
  const std::string difference =
      compare("latents", backend.download(floats, count), expected, 1e-5 * y.columns);
  return difference.empty() ? compare("float16 latents", from_halves, expected, 0.05) : difference;
}

// Some of the others are there twice: the first one is to be found.
std::string nearest_case(DeviceElement element, int num_rows, int num_others, int num_parts,
                         KernelBackend& backend) {
  const int width = 72;
  const Matrix rows(backend, num_rows, 1, width, element, 4);
  Matrix others(backend, num_others, 1, width, element, 5);
  std::vector<float>& numbers = others.parts.front();
  for (int j = num_others / 2; j < num_others; ++j) {
    for (int column = 0; column < width; ++column) {
      numbers[static_cast<std::size_t>(j * width + column)] =
          numbers[static_cast<std::size_t>((j - num_others / 2) * width + column)];
    }
  }
  others.device.parts[0] = backend.upload(narrowed(numbers, element));
  const auto count = static_cast<std::size_t>(num_rows);
  NearestRows params{
      .rows = rows.device,
      .others = others.device,
      .element = element,
      .num_parts = num_parts,
      .part_product = backend.unwritten<float>(count * static_cast<std::size_t>(num_parts)),
      .part_match = backend.unwritten<std::int32_t>(count * static_cast<std::size_t>(num_parts)),
      .product = backend.unwritten<float>(count),
      .match = backend.unwritten<std::int32_t>(count)};
  backend.run(params);
  const std::vector<std::int32_t> match = backend.download(params.match, count);
  std::vector<float> best;
  for (int row = 0; row < num_rows; ++row) {
    int expected = 0;
    double largest = rows.product(row, others, 0);
    for (int j = 1; j < num_others; ++j) {
      const double product = rows.product(row, others, j);
      if (product > largest) {
        largest = product;
        expected = j;
      }
    }
    best.push_back(static_cast<float>(largest));
    if (match[static_cast<std::size_t>(row)] != expected) {
      return "row " + std::to_string(row) + " matches " +
             std::to_string(match[static_cast<std::size_t>(row)]) + ", expected " +
             std::to_string(expected);
    }
  }
  return compare("products", backend.download(params.product, count), best, 1e-3);
}

std::string lost_case(DeviceElement element, KernelBackend& backend) {
  const int num_tokens = 130, rank = 24;
  const Matrix h(backend, num_tokens, 1, rank, element, 6);
  Matrix y(backend, num_tokens, 2, 72, element, 7);
  const Matrix b(backend, y.columns, 1, rank, element, 8);
  for (std::size_t part = 0; part < 2; ++part) {  // a token of all zeros loses nothing that counts
    std::fill_n(y.parts[part].begin() + 3 * 72, 72, 0.0f);
    y.device.parts[part] = backend.upload(narrowed(y.parts[part], element));
  }
  const auto count = static_cast<std::size_t>(num_tokens);
  LostRows params{.latents = h.device,
                  .reconstruct = b.device,
                  .exact = y.device,
                  .element = element,
                  .part_lost = backend.unwritten<float>(2 * count),
                  .part_energy = backend.unwritten<float>(2 * count),
                  .scores = backend.unwritten<float>(count)};
  backend.run(params);
  std::vector<float> scores = backend.download(params.scores, count), expected;
  for (int token = 0; token < num_tokens; ++token) {
    double lost = 0, energy = 0;
    for (int c = 0; c < y.columns; ++c) {
      lost += std::pow(y.at(token, c) - h.product(token, b, c), 2);
      energy += std::pow(y.at(token, c), 2);
    }
    expected.push_back(static_cast<float>(-lost / std::max(energy, 1e-30)));
  }
  if (!(scores[3] < -1e30f)) {
    return "a token of zeros with a latent scores " + std::to_string(scores[3]);
  }
  scores[3] = expected[3] = 0;
  return compare("scores", scores, expected, 1e-3);
}

std::string cosine_case(DeviceElement element, KernelBackend& backend) {
  const int num_rows = 37, width = 71;
  const Matrix a(backend, num_rows, 1, width, element, 9),
      b(backend, num_rows, 1, width, element, 10);
  const auto count = static_cast<std::size_t>(num_rows);
  auto* cosines = backend.unwritten<float>(count);
  backend.run(RowCosines{.a = a.device.parts[0],
                         .b = b.device.parts[0],
                         .num_rows = num_rows,
                         .width = width,
                         .element = element,
                         .cosines = cosines});
  std::vector<float> expected;
  for (int row = 0; row < num_rows; ++row) {
    expected.push_back(static_cast<float>(
        a.product(row, b, row) / std::sqrt(a.product(row, a, row) * b.product(row, b, row))));
  }
  return compare("cosines", backend.download(cosines, count), expected, 1e-5);
}

std::string gather_case(DeviceElement element, KernelBackend& backend) {
  const int width = 64, block_rows = 32, num_rows = 96;
  const CaseRows store(backend,
                       {.num_rows = {num_rows, num_rows},
                        .width = width,
                        .head_dim = 32,
                        .block_rows = block_rows,
                        .element = element,
                        .per_channel = false},
                       11);
  const auto row_bytes = static_cast<std::size_t>(row_stride(store.device()));
  const std::size_t block_bytes = row_bytes * block_rows;
  const std::vector<std::int32_t> counts = {40, 5}, first_rows = {2, 30};
  std::vector<std::int32_t> chosen(80, 0);
  for (int i = 0; i < 40; ++i) {
    chosen[static_cast<std::size_t>(i)] = 2 * i + i % 3;
    chosen[static_cast<std::size_t>(40 + i)] = 95 - i;
  }
  std::vector<std::uint8_t*> blocks;
  for (int i = 0; i < 4; ++i) {
    blocks.push_back(backend.unwritten<std::uint8_t>(block_bytes));
  }
  DeviceRows to = store.device();
  to.blocks = backend.upload(std::vector<const void*>(blocks.begin(), blocks.end()));
  to.max_blocks = 2;
  backend.run(GatherRows{.from = store.device(),
                         .to = to,
                         .chosen = backend.upload(chosen),
                         .counts = backend.upload(counts),
                         .first_rows = backend.upload(first_rows),
                         .num_sequences = 2,
                         .max_count = 40});
  const std::vector<const void*> from_blocks = backend.download(
      store.device().blocks, static_cast<std::size_t>(2 * store.device().max_blocks));
  for (std::size_t sequence = 0; sequence < 2; ++sequence) {
    for (int row = 0; row < 2 * block_rows; ++row) {
      const int i = row - first_rows[sequence];
      const bool moved = i >= 0 && i < counts[sequence];
      std::vector<std::uint8_t> expected(row_bytes, 0xFF);
      if (moved) {
        const int source = chosen[sequence * 40 + static_cast<std::size_t>(i)];
        const auto* block = static_cast<const std::uint8_t*>(
            from_blocks[sequence * static_cast<std::size_t>(store.device().max_blocks) +
                        static_cast<std::size_t>(source / block_rows)]);
        expected = backend.download(
            block + static_cast<std::size_t>(source % block_rows) * row_bytes, row_bytes);
      }
      const std::vector<std::uint8_t> actual =
          backend.download(blocks[2 * sequence + static_cast<std::size_t>(row / block_rows)] +
                               static_cast<std::size_t>(row % block_rows) * row_bytes,
                           row_bytes);
      if (actual != expected) {
        return "row " + std::to_string(row) + " of sequence " + std::to_string(sequence) +
               (moved ? " is not the chosen one" : " was written");
      }
    }
  }
  return {};
}

template <class Run>
void add(std::vector<KernelCase>& cases, const std::string& name, DeviceElement element,
         const Run& run) {
  cases.push_back({name + "_" + element_name(element),
                   [element, run](KernelBackend& backend) { return run(element, backend); }});
}

}  // namespace

std::vector<KernelCase> product_cases() {
  std::vector<KernelCase> cases;
  for (const DeviceElement element : {DeviceElement::kBFloat16, DeviceElement::kFloat16}) {
    add(cases, "project_small", element, [](auto type, auto& backend) {
      return project_case({5, 1, 8, 3, type}, backend);
    });
    add(cases, "project_across_tiles", element, [](auto type, auto& backend) {
      return project_case({140, 3, 40, 136, type}, backend);
    });
    add(cases, "nearest_of_one_tile", element,
        [](auto type, auto& backend) { return nearest_case(type, 9, 12, 1, backend); });
    add(cases, "nearest_across_tiles", element,
        [](auto type, auto& backend) { return nearest_case(type, 133, 300, 2, backend); });
    add(cases, "nearest_with_idle_parts", element,
        [](auto type, auto& backend) { return nearest_case(type, 20, 140, 5, backend); });
    add(cases, "lost", element, lost_case);
    add(cases, "cosines", element, cosine_case);
    add(cases, "gather", element, gather_case);
  }
  add(cases, "gather", DeviceElement::kInt8, gather_case);
  add(cases, "gather", DeviceElement::kInt4, gather_case);
  return cases;
}

}  // namespace kvc::testing
