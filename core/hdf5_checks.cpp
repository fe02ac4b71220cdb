#include "core/hdf5_handle.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <filesystem>
#include <mutex>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <tuple>

#include "core/interrupt.h"
#include "core/mapped_file.h"

namespace kvc {
namespace {

constexpr std::int64_t kMaxElements = std::int64_t{1} << 40;
constexpr std::int64_t kMaxDeflateRatio = 1040;  // of zlib: 1032, plus headers
constexpr std::int64_t kMaxChunkBytes = std::int64_t{64} << 20;

bool allowed_filters(hid_t list) {
  for (int i = 0; i < H5Pget_nfilters(list); ++i) {
    unsigned flags = 0, config = 0;
    std::size_t num_values = 0;
    const H5Z_filter_t filter = H5Pget_filter2(list, static_cast<unsigned>(i), &flags, &num_values,
                                               nullptr, 0, nullptr, &config);
    if (filter != H5Z_FILTER_DEFLATE && filter != H5Z_FILTER_SHUFFLE &&
        filter != H5Z_FILTER_FLETCHER32) {
      return false;
    }
  }
  return H5Pget_nfilters(list) <= 3;
}

// A collection of variable-length strings: 16 bytes of header (signature, version 1, three bytes that are not read, its size of
// 4096 or more), then objects, each with 16 bytes of header (index, references, size) and its data in whole words. Index 0 is
// free space, whose size includes its header. Other data may begin alike, but hardly with a size that fits.
bool is_sound_heap(std::span<const std::byte> file, std::size_t begin, std::uint64_t& steps) {
  constexpr std::uint64_t kHeader = 16, kLeast = 4096;
  const auto number = [&](std::size_t place, auto value) {
    std::memcpy(&value, file.data() + place, sizeof value);
    return value;
  };
  if (file.size() - begin < kHeader || number(begin + 4, std::uint8_t{}) != 1) {
    return true;
  }
  const auto size = number(begin + 8, std::uint64_t{});
  if (size < kLeast || size > file.size() - begin) {
    return true;
  }
  for (std::uint64_t at = kHeader; at < size && size - at >= kHeader;) {
    if (steps-- == 0) {
      return false;
    }
    const auto object = number(begin + at + 8, std::uint64_t{});
    const bool is_free = number(begin + at, std::uint16_t{}) == 0;
    const std::uint64_t left = size - at - (is_free ? 0 : kHeader);
    if (object > left || (is_free && object < kHeader)) {
      return false;
    }
    at += is_free ? object : kHeader + std::min(left, (object + 7) / 8 * 8);
  }
  return true;
}

void search_heaps(const std::filesystem::path& path) {
  constexpr std::string_view kSignature = "GCOL";
  constexpr std::size_t kSlice = std::size_t{64} << 20;
  const MappedFile mapped(path);
  const std::span<const std::byte> bytes = mapped.bytes();
  // Objects of heaps that do not overlap, as real ones do not. One that begins alike in other data may be read besides.
  std::uint64_t steps = bytes.size() / 4 + 1024;
  for (std::size_t begin = 0; begin < bytes.size(); begin += kSlice) {
    check_interrupt();
    const std::span<const std::byte> slice =
        bytes.subspan(begin, std::min(kSlice + kSignature.size() - 1, bytes.size() - begin));
    const std::string_view text(reinterpret_cast<const char*>(slice.data()), slice.size());
    for (std::size_t at = 0; (at = text.find(kSignature, at)) != std::string_view::npos; ++at) {
      KVC_CHECK(is_sound_heap(bytes, begin + at, steps),
                "{}: its strings are damaged: delete the file and make it again", path.string());
    }
    release_pages(slice);
  }
}

}  // namespace

void check_hdf5_heaps(const std::filesystem::path& path) {
  // Files that are sound as they are now: stages open theirs once per layer.
  static std::mutex mutex;
  static std::set<std::tuple<std::string, std::uintmax_t, std::filesystem::file_time_type>> sound;
  const std::tuple file(std::filesystem::absolute(path).string(), std::filesystem::file_size(path),
                        std::filesystem::last_write_time(path));
  const std::lock_guard lock(mutex);
  if (!sound.contains(file)) {
    search_heaps(path);
    sound.insert(file);
  }
}

bool hdf5_reachable(hid_t file, const std::string& path) {
  std::string prefix;
  for (const std::string& part : split_hdf5_path(path)) {
    prefix += "/" + part;
    H5L_info_t link;
    if (H5Lexists(file, prefix.c_str(), H5P_DEFAULT) <= 0 ||
        H5Lget_info(file, prefix.c_str(), &link, H5P_DEFAULT) < 0 || link.type != H5L_TYPE_HARD) {
      return false;
    }
  }
  return true;
}

std::vector<std::int64_t> hdf5_shape(hid_t dataset, const std::string& subject) {
  const Hdf5Handle space(H5Dget_space(dataset), H5Sclose);
  const int rank = H5Sget_simple_extent_ndims(space);
  KVC_CHECK(rank >= 0 && rank <= kMaxHdf5Rank, "{}: {} axes; at most {} are allowed", subject, rank,
            kMaxHdf5Rank);
  std::vector<hsize_t> sizes(static_cast<std::size_t>(rank));
  H5Sget_simple_extent_dims(space, sizes.data(), nullptr);
  std::int64_t left = kMaxElements;
  for (hsize_t size : sizes) {
    KVC_CHECK(size <= static_cast<hsize_t>(left), "{}: too many elements", subject);
    left /= std::max<std::int64_t>(1, static_cast<std::int64_t>(size));
  }
  return {sizes.begin(), sizes.end()};
}

void check_hdf5_storage(hid_t file, hid_t dataset, std::int64_t num_bytes,
                        const std::string& subject) {
  const Hdf5Handle list(H5Dget_create_plist(dataset), H5Pclose);
  const H5D_layout_t layout = H5Pget_layout(list);
  KVC_CHECK(layout == H5D_COMPACT || layout == H5D_CONTIGUOUS || layout == H5D_CHUNKED,
            "{}: storage layout not supported", subject);
  KVC_CHECK(H5Pget_external_count(list) == 0, "{}: data outside the file", subject);
  KVC_CHECK(allowed_filters(list),
            "{}: filter not supported; only shuffle, gzip and fletcher32 are", subject);
  hsize_t file_bytes = 0;
  H5Fget_filesize(file, &file_bytes);
  const auto stored =
      static_cast<std::int64_t>(std::min<hsize_t>(H5Dget_storage_size(dataset), file_bytes));
  if (layout == H5D_CHUNKED) {
    hsize_t chunk[kMaxHdf5Rank] = {};
    const int rank = H5Pget_chunk(list, kMaxHdf5Rank, chunk);
    std::int64_t left = kMaxChunkBytes / 8;
    for (int i = 0; i < std::min(rank, kMaxHdf5Rank); ++i) {
      KVC_CHECK(chunk[i] > 0 && chunk[i] <= static_cast<hsize_t>(left), "{}: chunks too large",
                subject);
      left /= static_cast<std::int64_t>(chunk[i]);
    }
    KVC_CHECK(num_bytes / kMaxDeflateRatio <= stored, "{}: incomplete dataset", subject);
  } else {
    KVC_CHECK(num_bytes <= stored, "{}: incomplete dataset", subject);
  }
}

}  // namespace kvc
