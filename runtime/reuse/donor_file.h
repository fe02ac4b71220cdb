// One entry of a donor store: a prompt's token ids with its keys and values, as a safetensors file.
//
//   ids             I32 [num_tokens]
//   mean_embedding  F32 [hidden_size], of the tokens, before they are turned
//   key.000, value.000, ...  [num_tokens, num_kv_heads, head_dim] per layer, keys post-RoPE
//   manifest        U8, JSON: {"format", "binding", "checksums": {tensor: 16 hexadecimal digits}}
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <string>
#include <vector>

#include "core/error.h"
#include "core/safetensors.h"

namespace kvc {

// What entries of a model look like, and whose they are.
struct DonorFormat {
  std::string binding;  // hash of checkpoint, tokenizer, RoPE, types and format
  int num_layers = 0;
  std::int64_t num_kv_heads = 0, head_dim = 0, hidden_size = 0, vocab_size = 0;
  at::ScalarType dtype = at::kFloat;  // of keys and values
};

struct DonorPrompt {
  std::vector<std::int64_t> ids;
  at::Tensor mean_embedding;      // [hidden_size] float32
  std::vector<at::Tensor> key{};  // [num_layers]
  std::vector<at::Tensor> value{};

  std::int64_t num_tokens() const { return static_cast<std::int64_t>(ids.size()); }
};

// Keys and values: 2 * num_layers * kv_dim * num_tokens * bytes of a number.
std::int64_t kv_bytes(const DonorPrompt& prompt);

// An entry of another model, tokenizer or format: nothing is wrong with it.
class ForeignDonor : public Error {
 public:
  using Error::Error;
};

// Creates `path`, complete and on the disk; Error on any failure, which leaves no file.
void write_donor(const std::filesystem::path& path, const DonorFormat& format,
                 const DonorPrompt& prompt);
// Without keys and values, which are not looked at. Error for a file that is damaged or no entry, ForeignDonor
// for another binding.
DonorPrompt read_donor_head(const std::filesystem::path& path, const DonorFormat& format);

// An entry whose every byte was found to be what was written.
class Donor {
 public:
  // Errors as read_donor_head.
  Donor(const std::filesystem::path& path, const DonorFormat& format);

  const DonorPrompt& prompt() const { return prompt_; }  // key and value lie in the mapped file

 private:
  SafetensorsFile file_;
  DonorPrompt prompt_;
};

}  // namespace kvc
