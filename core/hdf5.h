// HDF5 files as this project writes and reads them: groups, string attributes of the file, and plain datasets of float64,
// int64 and strings. Files are byte-identical for equal contents (no times are stored). The attribute `checksum` of a
// dataset covers its data: damage is an Error when they are read.
#pragma once

#include <cstdint>
#include <filesystem>
#include <span>
#include <string>
#include <vector>

namespace kvc {

class Hdf5Writer {
 public:
  explicit Hdf5Writer(const std::filesystem::path& path);  // created exclusively
  ~Hdf5Writer();
  Hdf5Writer(const Hdf5Writer&) = delete;
  Hdf5Writer& operator=(const Hdf5Writer&) = delete;

  // Paths are absolute ("/layers/3/gram"); missing groups are created.
  void attribute(const std::string& name, const std::string& value);  // of the file
  // `dimensions` labels the axes (h5py: dataset.dims[i].label); as many as the shape has, or none.
  void dataset(const std::string& path, std::span<const double> values,
               const std::vector<std::int64_t>& shape,
               const std::vector<std::string>& dimensions = {});
  void dataset(const std::string& path, std::span<const std::int64_t> values,
               const std::vector<std::int64_t>& shape,
               const std::vector<std::string>& dimensions = {});
  void dataset(const std::string& path, const std::string& text);  // scalar UTF-8 string
  void close();  // flush, fsync; throws on failure (disk full)

 private:
  std::filesystem::path path_;
  std::int64_t file_ = -1;
};

class Hdf5Reader {
 public:
  explicit Hdf5Reader(const std::filesystem::path& path);
  ~Hdf5Reader();
  Hdf5Reader(const Hdf5Reader&) = delete;
  Hdf5Reader& operator=(const Hdf5Reader&) = delete;

  const std::filesystem::path& path() const { return path_; }
  bool contains(const std::string& path) const;
  std::vector<std::string> children(const std::string& group) const;  // sorted
  std::string attribute(const std::string& name) const;               // of the file
  std::vector<std::int64_t> shape(const std::string& path) const;
  // The shape must equal `shape`, and the file's element type the requested one.
  std::vector<double> doubles(const std::string& path,
                              const std::vector<std::int64_t>& shape) const;
  std::vector<std::int64_t> ints(const std::string& path,
                                 const std::vector<std::int64_t>& shape) const;
  std::string text(const std::string& path) const;

 private:
  std::filesystem::path path_;
  std::int64_t file_ = -1;
};

}  // namespace kvc
