// What the HDF5 writer and reader share: handles that close themselves, and the reason for the
// library's last failure. Included by their sources only.
#pragma once

#include <hdf5.h>

#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include <cstdint>
#include "core/error.h"

namespace kvc {

inline constexpr int kMaxHdf5Rank = 8;
inline constexpr const char* kHdf5Checksum =
    "checksum";  // attribute of a dataset: checksum_of its data

class Hdf5Handle {
 public:
  using Close = herr_t (*)(hid_t);
  Hdf5Handle(hid_t id, Close closing) : id_(id), close_(closing) {}
  ~Hdf5Handle() { close(); }
  Hdf5Handle(Hdf5Handle&& other) noexcept
      : id_(std::exchange(other.id_, -1)), close_(other.close_) {}
  Hdf5Handle& operator=(Hdf5Handle&& other) noexcept {
    std::swap(id_, other.id_);
    std::swap(close_, other.close_);
    return *this;
  }

  operator hid_t() const { return id_; }
  bool valid() const { return id_ >= 0; }
  // False if what the library still held back for the object could not be written.
  bool close() {
    const hid_t id = std::exchange(id_, -1);
    return id < 0 || close_(id) >= 0;
  }

 private:
  hid_t id_;
  Close close_;
};

// The library prints nothing, loads no plug-in and does nothing at exit. Call before any other use;
// silence is a property of the calling thread.
void prepare_hdf5();

// ": No space left on device" if the operating system gave the reason for the last failure, else
// empty.
std::string hdf5_failure_reason();

// "/layers/3/gram" -> {"layers", "3", "gram"}; Error unless absolute and without empty components.
std::vector<std::string> split_hdf5_path(const std::string& path);

Hdf5Handle hdf5_string_type(bool ascii = false);  // variable length, as h5py's str

// What is checked of a foreign file before its data are read.
// Whether `path` leads to an object inside the file: soft and external links are not followed.
bool hdf5_reachable(hid_t file, const std::string& path);
// Error where objects of a heap of strings do not lie one behind the other: the library would not end. Reads the whole file,
// once while it stays as it is.
void check_hdf5_heaps(const std::filesystem::path& path);
// Error for too many axes or elements.
std::vector<std::int64_t> hdf5_shape(hid_t dataset, const std::string& subject);
// The declared size must be plausible for the file before anything is allocated; unusual layouts
// and filters are refused.
void check_hdf5_storage(hid_t file, hid_t dataset, std::int64_t num_bytes,
                        const std::string& subject);

}  // namespace kvc
