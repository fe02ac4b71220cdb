#include "calibrate/sum_files.h"

#include <memory>

#include "core/error.h"
#include "core/hash.h"
#include "core/hdf5.h"
#include "core/output.h"
#include "core/provenance.h"

namespace kvc {
namespace {

using Readers = std::vector<std::unique_ptr<Hdf5Reader>>;

// One dataset of every file, summed in the order of the files.
void add_dataset(const Readers& readers, const std::string& path, Hdf5Writer& out) {
  const std::vector<std::int64_t> shape = readers.front()->shape(path);
  std::vector<double> sum = readers.front()->doubles(path, shape);
  for (std::size_t i = 1; i < readers.size(); ++i) {
    const std::vector<double> values = readers[i]->doubles(path, shape);
    for (std::size_t j = 0; j < sum.size(); ++j) {
      sum[j] += values[j];
    }
  }
  std::vector<std::string> labels;
  if (path.starts_with("/joint/")) {
    labels.assign(shape.size(), "stacked channel");
  } else if (path.starts_with("/attention/")) {
    labels = {"KV head", "channel", "channel"};
  } else if (shape.size() == 2) {
    const bool is_gram = path.ends_with("/gram"), is_cross = path.ends_with("_cross");
    labels = is_gram    ? std::vector<std::string>{"input channel", "input channel"}
             : is_cross ? std::vector<std::string>{"channel", "next layer's channel"}
                        : std::vector<std::string>{"channel", "channel"};
  }
  out.dataset(path, sum, shape, labels);
}

void add_groups(const Readers& readers, const std::string& parent, Hdf5Writer& out) {
  if (!readers.front()->contains(parent)) {
    return;
  }
  for (const std::string& group : readers.front()->children(parent)) {
    for (const std::string& name : readers.front()->children(parent + "/" + group)) {
      add_dataset(readers, parent + "/" + group + "/" + name, out);
    }
  }
}

}  // namespace

void add_files(const std::vector<std::filesystem::path>& files, const SumFiles& what,
               const std::filesystem::path& out, bool force) {
  KVC_CHECK_USAGE(files.size() >= 2, "--add requires at least two {} files", what.kind);
  Readers readers;
  Provenance provenance;
  Json added = Json::array();
  std::int64_t num_tokens = 0;
  for (const std::filesystem::path& file : files) {
    readers.push_back(std::make_unique<Hdf5Reader>(file));
    const Provenance found = read_provenance(*readers.back());
    provenance = readers.size() == 1 ? found : provenance;
    check_provenance(found, what.kind, provenance.checkpoint_hash, file);
    for (const std::string& option : what.equal_options) {
      KVC_CHECK(found.options.value(option, Json()) == provenance.options.value(option, Json()),
                "{}: made with another {} than {}; only files made with the same options add up",
                file.string(), option, files.front().string());
    }
    added.push_back(found.tokens_hash);
    num_tokens += readers.back()->ints("/num_tokens", {1}).front();
  }
  provenance.tokens_hash = sha256_hex(added.dump());
  provenance.options["added"] = added;
  OutputFile output(out, force);
  Hdf5Writer sum(output.path());
  write_provenance(sum, provenance);
  sum.dataset("/num_tokens", std::vector<std::int64_t>{num_tokens}, {1});
  for (const std::string& group : what.groups) {
    add_groups(readers, group, sum);
  }
  sum.close();
  output.commit();
}

}  // namespace kvc
