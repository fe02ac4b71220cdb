#include "core/checkpoint_files.h"

#include <algorithm>
#include <array>
#include <string_view>
#include <vector>

#include "core/error.h"
#include "core/shell_text.h"

namespace kvc {
namespace {

namespace fs = std::filesystem;

constexpr const char* kUseOriginal =
    "convert the checkpoint it was made from, in float32, bfloat16 or float16";

// Ends of the names that quantisers give to packed weights, their scales and zero points.
struct Packed {
  std::string_view ending;
  std::string_view format;
};
constexpr std::array kPacked = {
    Packed{".qweight", "GPTQ or AWQ"},
    Packed{".qzeros", "GPTQ or AWQ"},
    Packed{".weight_packed", "compressed-tensors"},
    Packed{".weight_scale", "compressed-tensors"},
    Packed{".weight_zero_point", "compressed-tensors"},
    Packed{".weight_scale_inv", "float8"},
    Packed{".weight.absmax", "bitsandbytes"},
    Packed{".weight.quant_map", "bitsandbytes"},
    Packed{".SCB", "bitsandbytes"},
};

bool is_low_precision_float(Dtype dtype) {
  const std::string_view name = dtype_name(dtype);
  return name.starts_with("F8_") || name.starts_with("F6_") || name == "F4";
}

// The files of `directory` that end so, sorted.
std::vector<std::string> files_ending(const fs::path& directory, const std::string& ending) {
  std::vector<std::string> names;
  for (const fs::directory_entry& entry : fs::directory_iterator(directory)) {
    if (entry.path().filename().string().ends_with(ending)) {
      names.push_back(entry.path().filename().string());
    }
  }
  std::sort(names.begin(), names.end());
  return names;
}

void refuse_gguf(const fs::path& directory) {
  if (const auto found = files_ending(directory, ".gguf"); !found.empty()) {
    fail(
        "{}: GGUF weights ({}) are not read; convert the safetensors checkpoint they were made "
        "from",
        directory.string(), found.front());
  }
}

void refuse_pickles(const fs::path& directory) {
  for (const char* ending : {".bin", ".pt", ".pth", ".ckpt"}) {
    if (const auto found = files_ending(directory, ending); !found.empty()) {
      const std::string source = (directory / "").parent_path().string();
      fail(
          "{}: only pickled weights ({}), which can run code when read. Where you trust them, "
          "convert them: python3 -c \"import sys; from transformers import AutoModelForCausalLM as "
          "M, AutoTokenizer as T; [C.from_pretrained(sys.argv[1]).save_pretrained(sys.argv[2]) "
          "for C in (M, T)]\" {} {}",
          directory.string(), found.front(), shell_quoted(source),
          shell_quoted(source + "-safetensors"));
    }
  }
}

}  // namespace

void refuse_quantised_config(const Json& config, const fs::path& path) {
  const auto found = config.find("quantization_config");
  if (found != config.end() && !found->is_null()) {
    const auto method = found->is_object() ? found->find("quant_method") : found->end();
    const bool named = found->is_object() && method != found->end() && method->is_string();
    fail("{}: the checkpoint is quantised (\"quantization_config\"{}); {}", path.string(),
         named ? fmt::format(": {}", excerpt(*method)) : "", kUseOriginal);
  }
  if (const auto text = config.find("text_config"); text != config.end() && text->is_object()) {
    refuse_quantised_config(*text, path);
  }
}

void refuse_quantised_tensors(std::span<const TensorInfo> tensors, const fs::path& path) {
  for (const TensorInfo& tensor : tensors) {
    KVC_CHECK(!is_low_precision_float(tensor.dtype),
              "{}: the checkpoint is quantised (tensor '{}' is {}); {}", path.string(), tensor.name,
              dtype_name(tensor.dtype), kUseOriginal);
    for (const Packed& packed : kPacked) {
      KVC_CHECK(!tensor.name.ends_with(packed.ending),
                "{}: the checkpoint is quantised (tensor '{}', as {} writes it); {}", path.string(),
                tensor.name, packed.format, kUseOriginal);
    }
  }
}

void fail_without_weights(const fs::path& directory) {
  const std::string subject = directory.string();
  if (const auto found = files_ending(directory, ".safetensors"); !found.empty()) {
    fail(
        "{}: has {} but neither model.safetensors nor model.safetensors.index.json; download the "
        "missing file, or rename a single file to model.safetensors",
        subject, found.front());
  }
  refuse_pickles(directory);
  refuse_gguf(directory);
  fail("{}: no weights; expected model.safetensors or model.safetensors.index.json", subject);
}

void check_checkpoint_directory(const fs::path& directory) {
  constexpr const char* kExpected = "expected the directory of a HuggingFace checkpoint";
  const std::string subject = directory.string();
  KVC_CHECK(fs::exists(directory), "{}: does not exist; {}", subject, kExpected);
  KVC_CHECK(fs::is_directory(directory) || directory.extension() != ".gguf",
            "{}: GGUF weights are not read; convert the safetensors checkpoint they were made from",
            subject);
  KVC_CHECK(fs::is_directory(directory), "{}: not a directory; {}", subject, kExpected);
  if (!fs::exists(directory / "config.json")) {
    refuse_gguf(directory);
    fail("{}: no config.json; {}", subject, kExpected);
  }
}

}  // namespace kvc
