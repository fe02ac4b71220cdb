#include <algorithm>
#include <cstring>

#include "core/checksum.h"
#include "core/hdf5.h"
#include "core/hdf5_handle.h"

namespace kvc {
namespace {

constexpr std::size_t kMaxChildren = 1'000'000;
constexpr std::size_t kMaxTextBytes = 256u << 20;

std::string subject_of(const std::filesystem::path& path, const std::string& object) {
  return path.string() + ":" + object;
}

Hdf5Handle open_dataset(hid_t file, const std::string& path, const std::string& subject) {
  KVC_CHECK(hdf5_reachable(file, path),
            "{}: no such dataset; the file is damaged, or of another kind", subject);
  Hdf5Handle dataset(H5Dopen2(file, path.c_str(), H5P_DEFAULT), H5Dclose);
  KVC_CHECK(dataset.valid(), "{}: not a readable dataset", subject);
  return dataset;
}

std::string shape_text(const std::vector<std::int64_t>& shape) {
  std::string text;
  for (std::int64_t size : shape) {
    text += fmt::format("{}{}", text.empty() ? "" : ", ", size);
  }
  return "[" + text + "]";
}

// Datasets of other programs have no checksum.
void check_contents(hid_t dataset, std::span<const std::byte> bytes, const std::string& subject) {
  if (H5Aexists(dataset, kHdf5Checksum) <= 0) {
    return;
  }
  const Hdf5Handle attribute(H5Aopen(dataset, kHdf5Checksum, H5P_DEFAULT), H5Aclose);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  std::int64_t stated = 0;
  KVC_CHECK(
      H5Sget_simple_extent_npoints(space) == 1 &&
          H5Aread(attribute, H5T_NATIVE_INT64, &stated) >= 0 &&
          stated == static_cast<std::int64_t>(checksum_of(bytes)),
      "{}: the data differ from their checksum; the file is damaged: delete it and make it again",
      subject);
}

template <typename Element>
std::vector<Element> read_dataset(hid_t file, const std::filesystem::path& file_path,
                                  const std::string& path, const std::vector<std::int64_t>& shape,
                                  hid_t memory_type, const char* type_name) {
  const std::string subject = subject_of(file_path, path);
  const Hdf5Handle dataset = open_dataset(file, path, subject);
  const std::vector<std::int64_t> found = hdf5_shape(dataset, subject);
  KVC_CHECK(found == shape, "{}: shape {}, expected {}", subject, shape_text(found),
            shape_text(shape));
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
  KVC_CHECK(H5Tequal(type, memory_type) > 0, "{}: expected elements of type {}", subject,
            type_name);
  std::int64_t count = 1;
  for (std::int64_t size : shape) {
    count *= size;
  }
  check_hdf5_storage(file, dataset, count * static_cast<std::int64_t>(sizeof(Element)), subject);
  std::vector<Element> values(static_cast<std::size_t>(count));
  if (count > 0) {
    KVC_CHECK(H5Dread(dataset, memory_type, H5S_ALL, H5S_ALL, H5P_DEFAULT, values.data()) >= 0,
              "{}: cannot read the dataset{}; the file is damaged: delete it and make it again",
              subject, hdf5_failure_reason());
  }
  check_contents(dataset, std::as_bytes(std::span<const Element>(values)), subject);
  return values;
}

void check_text_type(hid_t type, hid_t space, const std::string& subject) {
  KVC_CHECK(H5Tget_class(type) == H5T_STRING && H5Tis_variable_str(type) > 0 &&
                H5Sget_simple_extent_npoints(space) == 1,
            "{}: expected one variable-length string", subject);
}

// Takes over the string that the library allocated.
std::string take_text(char* text, const std::string& subject) {
  KVC_CHECK(text != nullptr, "{}: empty string reference", subject);
  const std::size_t length = strnlen(text, kMaxTextBytes + 1);
  std::string copy(text, std::min(length, kMaxTextBytes));
  H5free_memory(text);
  KVC_CHECK(length <= kMaxTextBytes, "{}: string too long", subject);
  return copy;
}

herr_t collect_name(hid_t, const char* name, const H5L_info_t*, void* result) {
  auto& names = *static_cast<std::vector<std::string>*>(result);
  names.emplace_back(name);
  return names.size() > kMaxChildren ? -1 : 0;
}

}  // namespace

Hdf5Reader::Hdf5Reader(const std::filesystem::path& path) : path_(path) {
  prepare_hdf5();
  KVC_CHECK(std::filesystem::is_regular_file(path), "{}: no such file", path.string());
  const Hdf5Handle access(H5Pcreate(H5P_FILE_ACCESS), H5Pclose);
  H5Pset_fclose_degree(access, H5F_CLOSE_STRONG);
  H5Pset_file_locking(access, false, true);  // complete files never change
  file_ = H5Fopen(path.c_str(), H5F_ACC_RDONLY, access);
  KVC_CHECK(file_ >= 0, "{}: not a readable HDF5 file, or truncated{}", path.string(),
            hdf5_failure_reason());
  try {
    check_hdf5_heaps(path);
  } catch (...) {
    H5Fclose(file_);
    throw;
  }
}

Hdf5Reader::~Hdf5Reader() { H5Fclose(file_); }

bool Hdf5Reader::contains(const std::string& path) const { return hdf5_reachable(file_, path); }

std::vector<std::string> Hdf5Reader::children(const std::string& group) const {
  const std::string subject = subject_of(path_, group);
  KVC_CHECK(hdf5_reachable(file_, group), "{}: no such group", subject);
  const Hdf5Handle opened(H5Gopen2(file_, group.c_str(), H5P_DEFAULT), H5Gclose);
  std::vector<std::string> names;
  KVC_CHECK(opened.valid() &&
                H5Literate(opened, H5_INDEX_NAME, H5_ITER_INC, nullptr, collect_name, &names) >= 0,
            "{}: cannot list the group", subject);
  std::sort(names.begin(), names.end());
  return names;
}

std::string Hdf5Reader::attribute(const std::string& name) const {
  const std::string place = subject_of(path_, "/"), subject = place + " attribute " + name;
  const Hdf5Handle attribute(H5Aopen_by_name(file_, "/", name.c_str(), H5P_DEFAULT, H5P_DEFAULT),
                             H5Aclose);
  KVC_CHECK(attribute.valid(), "{}: no attribute '{}'", place, name);
  const Hdf5Handle type(H5Aget_type(attribute), H5Tclose);
  const Hdf5Handle space(H5Aget_space(attribute), H5Sclose);
  check_text_type(type, space, subject);
  char* text = nullptr;
  KVC_CHECK(H5Aread(attribute, type, &text) >= 0, "{}: cannot be read", subject);
  return take_text(text, subject);
}

std::vector<std::int64_t> Hdf5Reader::shape(const std::string& path) const {
  const std::string subject = subject_of(path_, path);
  return hdf5_shape(open_dataset(file_, path, subject), subject);
}

std::vector<double> Hdf5Reader::doubles(const std::string& path,
                                        const std::vector<std::int64_t>& shape) const {
  return read_dataset<double>(file_, path_, path, shape, H5T_NATIVE_DOUBLE, "float64");
}

std::vector<std::int64_t> Hdf5Reader::ints(const std::string& path,
                                           const std::vector<std::int64_t>& shape) const {
  return read_dataset<std::int64_t>(file_, path_, path, shape, H5T_NATIVE_INT64, "int64");
}

std::string Hdf5Reader::text(const std::string& path) const {
  const std::string subject = subject_of(path_, path);
  const Hdf5Handle dataset = open_dataset(file_, path, subject);
  const Hdf5Handle type(H5Dget_type(dataset), H5Tclose);
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  check_text_type(type, space, subject);
  check_hdf5_storage(file_, dataset, 1, subject);
  char* text = nullptr;
  KVC_CHECK(H5Dread(dataset, type, H5S_ALL, H5S_ALL, H5P_DEFAULT, &text) >= 0, "{}: cannot be read",
            subject);
  const std::string copy = take_text(text, subject);
  check_contents(dataset, std::as_bytes(std::span(copy)), subject);
  return copy;
}

}  // namespace kvc
