// Messages of errors.
#pragma once

#include <string>

#include "core/error.h"

namespace kvc {

// The message of the Error that `action` throws; "" when it throws none.
template <class Action>
std::string error_of(const Action& action) {
  try {
    action();
  } catch (const Error& error) {
    return error.what();
  }
  return "";
}

}  // namespace kvc
