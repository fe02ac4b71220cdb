#include "runtime/reuse/donor_file.h"

#include <algorithm>
#include <cstring>
#include <map>
#include <span>

#include "core/checksum.h"
#include "core/json_fields.h"
#include "model/weights.h"

namespace kvc {
namespace {

constexpr const char* kFormat = "kvconvert donor 1";
constexpr const char* kManifest = "manifest";

std::string layer_name(const char* what, int layer) { return fmt::format("{}.{:03}", what, layer); }
std::string digits(std::uint64_t checksum) { return fmt::format("{:016x}", checksum); }

std::span<const std::byte> raw_bytes(const at::Tensor& tensor) {
  return {static_cast<const std::byte*>(tensor.const_data_ptr()), tensor.nbytes()};
}

using NamedTensors = std::map<std::string, at::Tensor>;

NamedTensors tensors_of(const DonorPrompt& prompt) {
  NamedTensors tensors{
      {"ids", at::tensor(prompt.ids, at::kLong).to(at::kInt)},
      {"mean_embedding", prompt.mean_embedding.to(at::kFloat).contiguous()},
  };
  for (std::size_t layer = 0; layer < prompt.key.size(); ++layer) {
    tensors[layer_name("key", static_cast<int>(layer))] = prompt.key[layer].contiguous();
    tensors[layer_name("value", static_cast<int>(layer))] = prompt.value[layer].contiguous();
  }
  return tensors;
}

TensorSource source_of(const std::string& name, Dtype dtype, std::vector<std::int64_t> shape,
                       std::span<const std::byte> bytes) {
  return {
      .name = name, .dtype = dtype, .shape = std::move(shape), .read = [bytes] { return bytes; }};
}

// An entry as it lies in a file.
class DonorReader {
 public:
  DonorReader(const SafetensorsFile& file, const DonorFormat& format)
      : file_(file), format_(format), subject_(file.path().string()) {
    const TensorInfo* info = file.find(kManifest);
    KVC_CHECK(info != nullptr, "{}: no \"{}\", expected an entry of a donor store", subject_,
              kManifest);
    const std::span<const std::byte> text = file.bytes(*info);
    const Json manifest =
        parse_json({reinterpret_cast<const char*>(text.data()), text.size()}, subject_);
    JsonFields fields(manifest, subject_);
    if (fields.text("format") != kFormat || fields.text("binding") != format.binding) {
      throw ForeignDonor(fmt::format("{}: of another model, tokenizer or version", subject_));
    }
    const Json& checksums = fields.at("checksums");
    KVC_CHECK(checksums.is_object(), "{}: \"checksums\" must be an object", subject_);
    checksums_ = checksums;
    fields.done();
  }

  // Checked against its checksum; it lies in the file.
  at::Tensor tensor(const std::string& name, at::ScalarType dtype,
                    const std::vector<std::int64_t>& shape) const {
    const TensorInfo* info = file_.find(name);
    KVC_CHECK(info != nullptr && info->dtype == dtype_of(dtype) && info->shape == shape,
              "{}: \"{}\" is missing or of another shape", subject_, name);
    const std::span<const std::byte> bytes = file_.bytes(*info);
    const auto expected = checksums_.find(name);
    KVC_CHECK(expected != checksums_.end() && *expected == digits(checksum_of(bytes)),
              "{}: \"{}\" is not what was written (its checksum differs)", subject_, name);
    return at::from_blob(const_cast<std::byte*>(bytes.data()), shape, dtype);
  }

  DonorPrompt head() const {
    const TensorInfo* ids = file_.find("ids");
    KVC_CHECK(ids != nullptr && ids->shape.size() == 1 && ids->shape[0] > 0,
              "{}: no token ids, expected an entry of a donor store", subject_);
    const at::Tensor flat = tensor("ids", at::kInt, ids->shape).to(at::kLong);
    DonorPrompt prompt;
    prompt.ids.assign(flat.const_data_ptr<std::int64_t>(),
                      flat.const_data_ptr<std::int64_t>() + flat.numel());
    const auto [least, most] = std::minmax_element(prompt.ids.begin(), prompt.ids.end());
    KVC_CHECK(*least >= 0 && *most < format_.vocab_size,
              "{}: token ids outside the vocabulary of {}", subject_, format_.vocab_size);
    prompt.mean_embedding = tensor("mean_embedding", at::kFloat, {format_.hidden_size}).clone();
    return prompt;
  }

 private:
  const SafetensorsFile& file_;
  const DonorFormat& format_;
  std::string subject_;
  Json checksums_;
};

}  // namespace

std::int64_t kv_bytes(const DonorPrompt& prompt) {
  std::int64_t bytes = 0;
  for (std::size_t layer = 0; layer < prompt.key.size(); ++layer) {
    bytes += static_cast<std::int64_t>(prompt.key[layer].nbytes() + prompt.value[layer].nbytes());
  }
  return bytes;
}

void write_donor(const std::filesystem::path& path, const DonorFormat& format,
                 const DonorPrompt& prompt) {
  const NamedTensors tensors = tensors_of(prompt);
  std::vector<TensorSource> sources;
  Json checksums = Json::object();
  for (const auto& [name, tensor] : tensors) {
    const std::span<const std::byte> bytes = raw_bytes(tensor);
    checksums[name] = digits(checksum_of(bytes));
    sources.push_back(source_of(name, dtype_of(tensor.scalar_type()), tensor.sizes().vec(), bytes));
  }
  const std::string manifest =
      Json({{"format", kFormat}, {"binding", format.binding}, {"checksums", checksums}}).dump();
  sources.push_back(source_of(kManifest, Dtype::kU8, {static_cast<std::int64_t>(manifest.size())},
                              std::as_bytes(std::span(manifest))));
  write_safetensors(path, std::move(sources));
}

DonorPrompt read_donor_head(const std::filesystem::path& path, const DonorFormat& format) {
  const SafetensorsFile file = SafetensorsFile::open(path);
  return DonorReader(file, format).head();
}

Donor::Donor(const std::filesystem::path& path, const DonorFormat& format)
    : file_(SafetensorsFile::open(path)) {
  const DonorReader reader(file_, format);
  prompt_ = reader.head();
  const std::vector<std::int64_t> shape{prompt_.num_tokens(), format.num_kv_heads, format.head_dim};
  for (int layer = 0; layer < format.num_layers; ++layer) {
    prompt_.key.push_back(reader.tensor(layer_name("key", layer), format.dtype, shape));
    prompt_.value.push_back(reader.tensor(layer_name("value", layer), format.dtype, shape));
  }
}

}  // namespace kvc
