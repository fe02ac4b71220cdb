#include "convert/methods/methods.h"

#include <algorithm>

#include "core/error.h"

namespace kvc {

bool takes(const Method& method, Options (*kind)(ConvertSettings& settings)) {
  return std::find(method.options.begin(), method.options.end(), kind) != method.options.end();
}

std::span<const Method> methods() {
  static const Method kMethods[] = {kCommonKv,  kPalu,    kCoded,       kPca,  kXkvStatic, kXkv,
                                    kMiniCache, kFusedKv, kFusedKvLite, kYoco, kCla};
  return kMethods;
}

const Method& find_method(std::string_view name) {
  std::string known;
  for (const Method& method : methods()) {
    if (method.name == name) {
      return method;
    }
    known += (known.empty() ? "" : ", ") + std::string(method.name);
  }
  fail_usage("--method {}: expected one of {}", name, known);
}

}  // namespace kvc
