#include "model/arch.h"

#include <fmt/ranges.h>

#include <string>
#include <vector>

#include "core/error.h"

namespace kvc {
namespace {

constexpr ArchSpec kArchs[] = {
    {.model_type = "llama",
     .architecture = "LlamaForCausalLM",
     .attention_bias_key = true,
     .mlp_bias_key = true},
    {.model_type = "mistral",
     .architecture = "MistralForCausalLM",
     .default_num_kv_heads = 8,
     .window = WindowRule::kAllLayers},
    {.model_type = "qwen2",
     .architecture = "Qwen2ForCausalLM",
     .qkv_bias_always = true,
     .default_num_kv_heads = 32,
     .window = WindowRule::kFromMaxWindowLayers},
    {.model_type = "qwen3",
     .architecture = "Qwen3ForCausalLM",
     .attention_bias_key = true,
     .qk_norm = true,
     .default_num_kv_heads = 32,
     .default_head_dim = 128,
     .window = WindowRule::kFromMaxWindowLayers},
};

}  // namespace

std::span<const ArchSpec> supported_archs() { return kArchs; }

const ArchSpec& find_arch(std::string_view model_type, std::string_view subject) {
  std::vector<std::string_view> known;
  for (const ArchSpec& arch : kArchs) {
    if (arch.model_type == model_type) {
      return arch;
    }
    known.push_back(arch.model_type);
  }
  fail("{}: model_type \"{}\" is not supported; supported: {}", subject, model_type,
       fmt::join(known, ", "));
}

}  // namespace kvc
