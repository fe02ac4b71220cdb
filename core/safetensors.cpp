#include "core/safetensors.h"

#include <algorithm>

#include "core/error.h"
#include "core/mapped_file.h"

namespace kvc {

SafetensorsFile SafetensorsFile::open(const std::filesystem::path& path) {
  SafetensorsFile file;
  file.path_ = path;
  file.file_ = std::make_shared<const MappedFile>(path);
  const std::span<const std::byte> bytes = file.file_->bytes();
  file.tensors_ = parse_header(bytes, bytes.size(), path, &file.metadata_);
  file.data_begin_ = bytes.size();
  if (!file.tensors_.empty()) {
    file.data_begin_ -= file.tensors_.back().end;
  }
  for (std::size_t i = 0; i < file.tensors_.size(); ++i) {
    file.index_.emplace(file.tensors_[i].name, i);
  }
  return file;
}

const TensorInfo* SafetensorsFile::find(const std::string& name) const {
  const auto found = index_.find(name);
  return found == index_.end() ? nullptr : &tensors_[found->second];
}

std::span<const std::byte> SafetensorsFile::bytes(const TensorInfo& tensor) const {
  const std::span<const std::byte> data = file_->bytes().subspan(data_begin_);
  KVC_CHECK(tensor.begin <= tensor.end && tensor.end <= data.size(),
            "{}: tensor '{}' is not of this file", path_.string(), tensor.name);
  return data.subspan(tensor.begin, tensor.num_bytes());
}

std::string_view SafetensorsFile::header() const {
  return {reinterpret_cast<const char*>(file_->bytes().data()) + 8, data_begin_ - 8};
}

}  // namespace kvc
