// A directory of prompts with their keys and values, shared by processes. Entries appear by rename, complete
// and on the disk, and never change; what is damaged or of another model is skipped. Entries are
// readable by their owner alone, since they hold what prompts said. Files of other names are never removed.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "runtime/reuse/donor_file.h"

namespace kvc {

class DonorStore {
 public:
  // Creates the directory where there is none; Error where that fails or it is no directory.
  // `limit`: bytes of all its entries.
  DonorStore(std::filesystem::path directory, DonorFormat format, std::int64_t limit);

  struct Candidate {
    std::string name;
    const DonorPrompt* head;  // valid until the next call
  };
  // The entries whose mean embedding is most like `mean_embedding` by cosine, at most `count`, best first.
  std::vector<Candidate> nearest(const at::Tensor& mean_embedding, std::int64_t count);
  // An entry, now the most recently used. Nothing, and a warning, where it is damaged; nothing where it is
  // no longer there.
  std::optional<Donor> open(const std::string& name);
  // Keeps a prompt, unless it is there. What the limit then leaves no room for goes, least recently used
  // first. On any failure (a full disk, a prompt above the limit) the prompt is not kept, with a warning.
  void store(const DonorPrompt& prompt);

 private:
  std::string name_of(const std::vector<std::int64_t>& ids) const;
  void refresh();
  void pass_over(const std::string& name, const std::string& reason);
  void write(const std::string& name, const DonorPrompt& prompt);
  void make_room(std::int64_t bytes) const;

  std::filesystem::path directory_;
  DonorFormat format_;
  std::int64_t limit_;
  std::map<std::string, DonorPrompt> heads_;  // by name; without keys and values
  std::set<std::string> passed_over_;         // damaged or foreign
  bool warned_of_foreign_ = false;
};

}  // namespace kvc
