#include <algorithm>
#include <type_traits>

#include "core/checksum.h"
#include "core/file_writer.h"
#include "core/hdf5.h"
#include "core/hdf5_handle.h"

namespace kvc {
namespace {

// Integers (token ids, counts) shrink several times; sums in floating point hardly do.
constexpr std::int64_t kCompressFromBytes = 64 << 10;
constexpr std::int64_t kChunkBytes = 512 << 10;
constexpr unsigned kGzipLevel = 4;

// Object times would make files of equal contents differ.
Hdf5Handle creation_list(hid_t kind) {
  Hdf5Handle list(H5Pcreate(kind), H5Pclose);
  H5Pset_obj_track_times(list, false);
  if (kind != H5P_DATASET_CREATE) {
    H5Pset_link_creation_order(list, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  }
  H5Pset_attr_creation_order(list, H5P_CRT_ORDER_TRACKED | H5P_CRT_ORDER_INDEXED);
  return list;
}

Hdf5Handle open_parent(hid_t file, const std::vector<std::string>& parts,
                       const std::filesystem::path& path) {
  Hdf5Handle group(H5Gopen2(file, "/", H5P_DEFAULT), H5Gclose);
  for (std::size_t i = 0; i + 1 < parts.size(); ++i) {
    const char* name = parts[i].c_str();
    const bool exists = H5Lexists(group, name, H5P_DEFAULT) > 0;
    Hdf5Handle child(
        exists ? H5Gopen2(group, name, H5P_DEFAULT)
               : H5Gcreate2(group, name, H5P_DEFAULT, creation_list(H5P_GROUP_CREATE), H5P_DEFAULT),
        H5Gclose);
    KVC_CHECK(child.valid(), "{}: cannot create HDF5 group '{}'{}", path.string(), parts[i],
              hdf5_failure_reason());
    group = std::move(child);
  }
  return group;
}

Hdf5Handle simple_space(const std::vector<std::int64_t>& shape) {
  const std::vector<hsize_t> sizes(shape.begin(), shape.end());
  return {sizes.empty() ? H5Screate(H5S_SCALAR)
                        : H5Screate_simple(static_cast<int>(sizes.size()), sizes.data(), nullptr),
          H5Sclose};
}

// Chunks are whole rows; a row longer than a chunk leaves the dataset as it is.
void compress(hid_t list, const std::vector<std::int64_t>& shape, std::int64_t num_bytes) {
  const std::int64_t row_bytes = num_bytes / shape.front();
  if (num_bytes < kCompressFromBytes || row_bytes > kChunkBytes) {
    return;
  }
  std::vector<hsize_t> chunk(shape.begin(), shape.end());
  chunk[0] = static_cast<hsize_t>(std::min(shape.front(), kChunkBytes / row_bytes));
  H5Pset_chunk(list, static_cast<int>(chunk.size()), chunk.data());
  H5Pset_shuffle(list);
  H5Pset_deflate(list, kGzipLevel);
}

void write_attribute(hid_t object, const std::string& name, hid_t type, hid_t space,
                     const void* value, const std::string& subject) {
  const Hdf5Handle attribute(
      H5Acreate2(object, name.c_str(), type, space, H5P_DEFAULT, H5P_DEFAULT), H5Aclose);
  KVC_CHECK(attribute.valid() && H5Awrite(attribute, type, value) >= 0,
            "{}: cannot write attribute '{}'{}", subject, name, hdf5_failure_reason());
}

// The attribute that HDF5's dimension scales interface (and h5py) reads.
void write_labels(hid_t dataset, const std::vector<std::string>& dimensions,
                  const std::string& subject) {
  std::vector<const char*> labels;
  for (const std::string& dimension : dimensions) {
    labels.push_back(dimension.c_str());
  }
  write_attribute(dataset, "DIMENSION_LABELS", hdf5_string_type(true),
                  simple_space({static_cast<std::int64_t>(labels.size())}), labels.data(), subject);
}

struct Values {
  hid_t memory_type;
  hid_t file_type;
  const void* data;
  std::size_t count;
  std::span<const std::byte> bytes;  // of the numbers, or of the text that `data` points to
  bool integers = false;
};

template <typename Element>
Values values_of(hid_t memory_type, hid_t file_type, std::span<const Element> values) {
  return {memory_type,           file_type,
          values.data(),         values.size(),
          std::as_bytes(values), std::is_integral_v<Element>};
}

void write_dataset(hid_t file, const std::filesystem::path& file_path, const std::string& path,
                   const Values& values, const std::vector<std::int64_t>& shape,
                   const std::vector<std::string>& dimensions) {
  const std::string subject = file_path.string() + ":" + path;
  std::size_t count = 1;
  for (std::int64_t size : shape) {
    count *= static_cast<std::size_t>(size);
  }
  KVC_CHECK(count == values.count, "{}: {} values do not fill a shape of {}", subject, values.count,
            count);
  KVC_CHECK(dimensions.empty() || dimensions.size() == shape.size(),
            "{}: {} dimension labels for {} axes", subject, dimensions.size(), shape.size());
  const std::vector<std::string> parts = split_hdf5_path(path);
  const Hdf5Handle parent = open_parent(file, parts, file_path);
  const Hdf5Handle list = creation_list(H5P_DATASET_CREATE);
  if (values.integers && !shape.empty() && count > 0) {
    compress(list, shape, static_cast<std::int64_t>(values.bytes.size()));
  }
  Hdf5Handle dataset(H5Dcreate2(parent, parts.back().c_str(), values.file_type, simple_space(shape),
                                H5P_DEFAULT, list, H5P_DEFAULT),
                     H5Dclose);
  KVC_CHECK(dataset.valid(), "{}: cannot create the dataset{}", subject, hdf5_failure_reason());
  if (count > 0) {
    KVC_CHECK(
        H5Dwrite(dataset, values.memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data) >= 0,
        "{}: cannot write the dataset{}", subject, hdf5_failure_reason());
  }
  const auto checksum = static_cast<std::int64_t>(checksum_of(values.bytes));
  write_attribute(dataset, kHdf5Checksum, H5T_NATIVE_INT64, simple_space({}), &checksum, subject);
  if (!dimensions.empty()) {
    write_labels(dataset, dimensions, subject);
  }
  // Small data are written only now, and the library forgets them whether that succeeds or not.
  KVC_CHECK(dataset.close(), "{}: cannot write the dataset{}", subject, hdf5_failure_reason());
}

}  // namespace

Hdf5Writer::Hdf5Writer(const std::filesystem::path& path) : path_(path) {
  prepare_hdf5();
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_libver_bounds(access, H5F_LIBVER_V18, H5F_LIBVER_V18);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  H5Pset_file_locking(access, false, true);  // nobody opens a file under construction
  file_ = H5Fcreate(path.c_str(), H5F_ACC_EXCL, creation_list(H5P_FILE_CREATE), access);
  KVC_CHECK(file_ >= 0, "{}: cannot create the file{}", path.string(), hdf5_failure_reason());
}

Hdf5Writer::~Hdf5Writer() {
  if (file_ >= 0) {
    H5Fclose(file_);
  }
}

void Hdf5Writer::attribute(const std::string& name, const std::string& value) {
  const Hdf5Handle root(H5Oopen(file_, "/", H5P_DEFAULT), H5Oclose);
  const char* text = value.c_str();
  write_attribute(root, name, hdf5_string_type(), simple_space({}), &text, path_.string() + ":/");
}

void Hdf5Writer::dataset(const std::string& path, std::span<const double> values,
                         const std::vector<std::int64_t>& shape,
                         const std::vector<std::string>& dimensions) {
  write_dataset(file_, path_, path, values_of(H5T_NATIVE_DOUBLE, H5T_IEEE_F64LE, values), shape,
                dimensions);
}

void Hdf5Writer::dataset(const std::string& path, std::span<const std::int64_t> values,
                         const std::vector<std::int64_t>& shape,
                         const std::vector<std::string>& dimensions) {
  write_dataset(file_, path_, path, values_of(H5T_NATIVE_INT64, H5T_STD_I64LE, values), shape,
                dimensions);
}

void Hdf5Writer::dataset(const std::string& path, const std::string& text) {
  const Hdf5Handle type = hdf5_string_type();
  const char* pointer = text.c_str();
  write_dataset(file_, path_, path, {type, type, &pointer, 1, std::as_bytes(std::span(text))}, {},
                {});
}

void Hdf5Writer::close() {
  const bool flushed = H5Fflush(file_, H5F_SCOPE_GLOBAL) >= 0;
  const std::string reason = flushed ? "" : hdf5_failure_reason();
  const bool closed = H5Fclose(std::exchange(file_, -1)) >= 0;
  KVC_CHECK(flushed && closed, "{}: cannot complete the file{}", path_.string(), reason);
  sync_path(path_, false);
}

}  // namespace kvc
