#include "core/provenance.h"

#include "core/error.h"
#include "core/interrupt.h"

namespace kvc {
namespace {

constexpr const char* kFormat = "kvconvert";  // value of the root attribute "format"

}  // namespace

void write_provenance(Hdf5Writer& file, const Provenance& provenance) {
  file.attribute("format", std::string(kFormat));
  file.attribute("kind", provenance.kind);
  file.attribute("tool_version", provenance.tool_version);
  file.attribute("checkpoint_hash", provenance.checkpoint_hash);
  file.attribute("tokens_hash", provenance.tokens_hash);
  file.dataset("/options", dump_json(provenance.options));  // may exceed what attributes hold
}

Provenance read_provenance(const Hdf5Reader& file) {
  std::string format;
  try {
    format = file.attribute("format");
  } catch (const Error&) {
    format.clear();
  }
  KVC_CHECK(format == kFormat, "{}: no kvconvert artifact (its attribute 'format' is missing)",
            file.path().string());
  Provenance provenance;
  provenance.kind = file.attribute("kind");
  provenance.tool_version = file.attribute("tool_version");
  provenance.checkpoint_hash = file.attribute("checkpoint_hash");
  provenance.tokens_hash = file.attribute("tokens_hash");
  provenance.options = parse_json(file.text("/options"), file.path().string() + ":/options");
  return provenance;
}

void check_provenance(const Provenance& found, const std::string& kind,
                      const std::string& checkpoint_hash, const std::filesystem::path& file) {
  KVC_CHECK(found.kind == kind, "{}: holds '{}', expected '{}'", file.string(), found.kind, kind);
  KVC_CHECK(
      found.checkpoint_hash == checkpoint_hash,
      "{}: computed for another checkpoint (hash {:.12}..., this one is {:.12}...); compute it "
      "again for this checkpoint",
      file.string(), found.checkpoint_hash, checkpoint_hash);
}

bool artifact_matches(const std::filesystem::path& path, const Provenance& expected) {
  if (!std::filesystem::is_regular_file(path)) {
    return false;
  }
  try {
    return read_provenance(Hdf5Reader(path)) == expected;
  } catch (const Error&) {
    check_interrupt();
    return false;
  }
}

}  // namespace kvc
