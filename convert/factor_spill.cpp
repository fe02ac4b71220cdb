#include "convert/factor_spill.h"

#include <fmt/format.h>

#include <list>

#include "core/error.h"
#include "core/safetensors.h"
#include "model/weights.h"

namespace kvc {
namespace {

TensorSource in_memory(const std::string& name, const at::Tensor& tensor) {
  return {name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), [tensor] {
            return std::span(static_cast<const std::byte*>(tensor.const_data_ptr()),
                             tensor.nbytes());
          }};
}

}  // namespace

void FactorSpill::add(const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  add(fmt::format("kvconvert.groups.{}.", num_groups_++), tensors);
}

void FactorSpill::add(const std::string& prefix,
                      const std::vector<std::pair<std::string, at::Tensor>>& tensors) {
  std::vector<TensorSource> sources;
  for (const auto& [name, tensor] : tensors) {
    sources.push_back(in_memory(prefix + name, tensor));
  }
  files_.push_back(directory_ / fmt::format("part-{}.safetensors", files_.size()));
  write_safetensors(files_.back(), std::move(sources));
}

void FactorSpill::assemble() {
  std::list<SafetensorsFile> files;
  std::vector<TensorSource> sources;
  for (const std::filesystem::path& path : files_) {
    files.push_back(SafetensorsFile::open(path));
    const SafetensorsFile& file = files.back();
    for (const TensorInfo& tensor : file.tensors()) {
      sources.push_back({tensor.name, tensor.dtype, tensor.shape,
                         [&file, &tensor] { return file.bytes(tensor); }});
    }
  }
  write_safetensors(directory_ / "conversion.safetensors", std::move(sources));
  files.clear();
  for (const std::filesystem::path& path : files_) {
    std::error_code error;
    std::filesystem::remove(path, error);
    KVC_CHECK(!error, "{}: cannot be removed: {}", path.string(), error.message());
  }
  files_.clear();
}

}  // namespace kvc
