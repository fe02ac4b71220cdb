#include "tests/testing/test_tensors.h"

#include <ATen/CPUGeneratorImpl.h>

#include <cstring>

#include "core/error.h"
#include "core/safetensors.h"
#include "model/weights.h"

namespace kvc::testing {
namespace {

at::ScalarType stored_type(const TensorInfo& info) {
  switch (info.dtype) {
    case Dtype::kI64:
      return at::kLong;
    case Dtype::kI32:
      return at::kInt;
    default:
      return scalar_type(info.dtype, info.name);
  }
}

}  // namespace

at::Tensor random_normal(const std::vector<std::int64_t>& shape, std::uint64_t seed) {
  return at::randn(shape, at::detail::createCPUGenerator(seed), at::TensorOptions(at::kFloat));
}

std::vector<std::vector<std::int64_t>> random_ids(std::int64_t num_sequences, std::int64_t seq_len,
                                                  std::int64_t vocab_size, std::uint64_t seed) {
  const at::Tensor ids =
      at::randint(0, vocab_size, {num_sequences, seq_len}, at::detail::createCPUGenerator(seed),
                  at::TensorOptions(at::kLong));
  std::vector<std::vector<std::int64_t>> sequences;
  for (std::int64_t row = 0; row < num_sequences; ++row) {
    const std::int64_t* first = ids.const_data_ptr<std::int64_t>() + row * seq_len;
    sequences.emplace_back(first, first + seq_len);
  }
  return sequences;
}

at::Tensor read_tensor(const std::filesystem::path& file, const std::string& name) {
  const SafetensorsFile tensors = SafetensorsFile::open(file);
  const TensorInfo* info = tensors.find(name);
  KVC_CHECK(info != nullptr, "{}: no tensor {}", file.string(), name);
  at::Tensor tensor = at::empty(info->shape, at::TensorOptions(stored_type(*info)));
  const auto bytes = tensors.bytes(*info);
  KVC_CHECK(tensor.nbytes() == bytes.size(), "{}: {} has a wrong size", file.string(), name);
  std::memcpy(tensor.mutable_data_ptr(), bytes.data(), bytes.size());
  return tensor;
}

}  // namespace kvc::testing
