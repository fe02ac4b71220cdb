// Checks of a foreign HDF5 file before its data are read. Included by the reader's sources only.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "core/hdf5_handle.h"

namespace kvc {

// Whether `path` leads to an object inside the file: soft and external links are not followed.
bool hdf5_reachable(hid_t file, const std::string& path);
// Error for too many axes or elements.
std::vector<std::int64_t> hdf5_shape(hid_t dataset, const std::string& subject);
// The declared size must be plausible for the file before anything is allocated; unusual layouts
// and filters are refused.
void check_hdf5_storage(hid_t file, hid_t dataset, std::int64_t num_bytes,
                        const std::string& subject);

}  // namespace kvc
