#include "core/hdf5_handle.h"

namespace kvc {
namespace {

herr_t find_reason(unsigned, const H5E_error2_t* entry, void* result) {
  constexpr std::string_view kBefore = "error message = '";
  const std::string_view text = entry->desc != nullptr ? entry->desc : "";
  const std::size_t begin = text.find(kBefore);
  if (begin != std::string_view::npos) {
    const std::string_view rest = text.substr(begin + kBefore.size());
    *static_cast<std::string*>(result) = ": " + std::string(rest.substr(0, rest.find('\'')));
  }
  return 0;
}

}  // namespace

void prepare_hdf5() {
  H5dont_atexit();  // every file is closed by its owner
  H5Eset_auto2(H5E_DEFAULT, nullptr, nullptr);
  H5PLset_loading_state(0);
}

std::string hdf5_failure_reason() {
  std::string reason;
  H5Ewalk2(H5E_DEFAULT, H5E_WALK_UPWARD, find_reason, &reason);
  return reason;
}

std::vector<std::string> split_hdf5_path(const std::string& path) {
  KVC_CHECK(!path.empty() && path.front() == '/', "HDF5 object '{}': the path is not absolute",
            path);
  std::vector<std::string> parts;
  for (std::size_t begin = 1; begin < path.size();) {
    const std::size_t end = std::min(path.find('/', begin), path.size());
    KVC_CHECK(end > begin, "HDF5 object '{}': the path has an empty component", path);
    parts.push_back(path.substr(begin, end - begin));
    begin = end + 1;
  }
  return parts;
}

Hdf5Handle hdf5_string_type(bool ascii) {
  Hdf5Handle type(H5Tcopy(H5T_C_S1), H5Tclose);
  H5Tset_size(type, H5T_VARIABLE);
  H5Tset_cset(type, ascii ? H5T_CSET_ASCII : H5T_CSET_UTF8);
  return type;
}

}  // namespace kvc
