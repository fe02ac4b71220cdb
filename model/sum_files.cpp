#include "model/sum_files.h"

#include <algorithm>
#include <memory>

#include "core/error.h"
#include "core/hash.h"
#include "core/output.h"
#include "core/progress.h"

namespace kvc {
namespace {

constexpr const char* kAdded = "added";  // option of a sum: the hash of each token set in it

// Every option counts but what differs from run to run by intent.
void check_equal_options(const Provenance& found, const Provenance& first,
                         const std::filesystem::path& file,
                         const std::filesystem::path& first_file) {
  for (const Json& options : {found.options, first.options}) {
    for (const auto& [option, _] : options.items()) {
      KVC_CHECK(option == kAdded || option == "seed" ||
                    found.options.value(option, Json()) == first.options.value(option, Json()),
                "{}: made with another {} than {}; only files made with the same options add up",
                file.string(), option, first_file.string());
    }
  }
}

using Readers = std::vector<std::unique_ptr<Hdf5Reader>>;

std::vector<std::string> labels_of(const std::string& path, std::size_t num_axes) {
  if (path.starts_with("/joint/") || path.starts_with("/metric/")) {
    return std::vector<std::string>(num_axes, "stacked channel");
  }
  if (path.ends_with("/distance_weight")) {
    return {"head", "distance"};
  }
  if (path.starts_with("/attention/")) {
    return {"KV head", "channel", "channel"};
  }
  if (path == "/channel_sum") {
    return {"layer", "key, value", "channel"};
  }
  if (num_axes != 2) {
    return {};
  }
  return path.ends_with("/gram")    ? std::vector<std::string>{"input channel", "input channel"}
         : path.ends_with("_cross") ? std::vector<std::string>{"channel", "next layer's channel"}
                                    : std::vector<std::string>{"channel", "channel"};
}

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
  out.dataset(path, sum, shape, labels_of(path, shape.size()));
}

std::vector<std::string> children_of(const Hdf5Reader& file, const std::string& parent) {
  return file.contains(parent) ? file.children(parent) : std::vector<std::string>();
}

void add_groups(const Readers& readers, const std::string& parent, Hdf5Writer& out) {
  for (const std::string& group : children_of(*readers.front(), parent)) {
    for (const std::string& name : readers.front()->children(parent + "/" + group)) {
      add_dataset(readers, parent + "/" + group + "/" + name, out);
    }
  }
}

}  // namespace

void write_sums(
    const std::filesystem::path& out, bool force, const Provenance& provenance,
    const std::function<void(Hdf5Writer& file, const std::filesystem::path& scratch)>& fill) {
  OutputFile output(out, force);
  Hdf5Writer file(output.path());
  write_provenance(file, provenance);
  fill(file, output.path().parent_path());
  file.close();
  output.commit();
}

void write_tensor(Hdf5Writer& file, const std::string& path, const at::Tensor& tensor,
                  const std::vector<std::string>& dimensions) {
  const at::Tensor values = tensor.cpu().contiguous();
  file.dataset(path,
               std::span<const double>(values.const_data_ptr<double>(),
                                       static_cast<std::size_t>(values.numel())),
               values.sizes().vec(), dimensions);
}

void add_files(const std::vector<std::filesystem::path>& files, const SumFiles& what,
               const std::filesystem::path& out, bool force) {
  KVC_CHECK_USAGE(files.size() >= 2, "--add requires at least two {} files",
                  what.name.empty() ? what.kind : what.name);
  Readers readers;
  Provenance provenance;
  Json added = Json::array();
  for (const std::filesystem::path& file : files) {
    readers.push_back(std::make_unique<Hdf5Reader>(file));
    const Provenance found = read_provenance(*readers.back());
    provenance = readers.size() == 1 ? found : provenance;
    check_provenance(found, what.kind, provenance.checkpoint_hash, file);
    check_equal_options(found, provenance, file, files.front());
    const Json hashes = found.options.value(kAdded, Json::array({found.tokens_hash}));
    for (const Json& hash : hashes) {
      if (std::find(added.begin(), added.end(), hash) != added.end()) {
        log_warning(
            fmt::format("{}: made of the same tokens as another of the files, which count twice",
                        file.string()));
        break;
      }
    }
    for (const std::string& group : what.groups) {
      KVC_CHECK(
          children_of(*readers.back(), group) == children_of(*readers.front(), group),
          "{}: has other parts under {} than {}; only files made with the same options add up",
          file.string(), group, files.front().string());
    }
    added.insert(added.end(), hashes.begin(), hashes.end());
  }
  provenance.tokens_hash = sha256_hex(added.dump());
  provenance.options[kAdded] = added;
  write_sums(out, force, provenance, [&](Hdf5Writer& sum, const std::filesystem::path&) {
    for (const std::string& count : what.counts) {
      std::int64_t total = 0;
      for (const auto& reader : readers) {
        total += reader->ints(count, {1}).front();
      }
      sum.dataset(count, std::vector<std::int64_t>{total}, {1});
    }
    for (const std::string& total : what.totals) {
      add_dataset(readers, total, sum);
    }
    for (const std::string& group : what.groups) {
      add_groups(readers, group, sum);
    }
  });
}

}  // namespace kvc
