// Searches for the tokens of one prompt in another, as kvrun --donors makes them:
//   token_match_bench MODEL IDS.json [ROUNDS]
// IDS.json holds the donor's ids and the new prompt's, [[...], [...]]. Prints JSON: of every search the median of the
// rounds' seconds, taken in turns, and recall, the share of tokens whose match is in float64 as near as the
// nearest of all pairs, but for 1e-6: a token that is there before and behind has two of them.
#include <ATen/ATen.h>
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <fstream>
#include <vector>

#include "core/checkpoint.h"
#include "core/json.h"
#include "model/decoder.h"
#include "runtime/reuse/faiss_match.h"

namespace {

constexpr std::int64_t kTile = 256;
constexpr double kTie = 1e-6;

// For every token, the largest of its cosines in float64.
at::Tensor largest_cosines(const at::Tensor& target, const at::Tensor& donor) {
  const at::Tensor columns = donor.to(at::kDouble).t();
  std::vector<at::Tensor> largest;
  for (std::int64_t first = 0; first < target.size(0); first += kTile) {
    const at::Tensor rows =
        target.narrow(0, first, std::min(kTile, target.size(0) - first)).to(at::kDouble);
    largest.push_back(at::mm(rows, columns).amax(1));
  }
  return at::cat(largest);
}

double recall_of(const at::Tensor& index, const at::Tensor& target, const at::Tensor& donor,
                 const at::Tensor& largest) {
  const at::Tensor matches = donor.index_select(0, index).to(at::kDouble);
  const at::Tensor cosines = (target.to(at::kDouble) * matches).sum(1);
  return (cosines >= largest - kTie).to(at::kDouble).mean().item<double>();
}

struct Search {
  kvc::TokenSearch kind;
  std::vector<double> seconds{};
  double recall = 0;
};

kvc::TokenMatch match(kvc::TokenSearch kind, const at::Tensor& target, const at::Tensor& donor) {
  return kind == kvc::TokenSearch::kExact ? kvc::match_tokens(target, donor)
                                          : kvc::match_with_faiss(kind, target, donor);
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 3) {
    fmt::print(stderr, "usage: token_match_bench MODEL IDS.json [ROUNDS]\n");
    return 2;
  }
  const kvc::Decoder decoder(kvc::Checkpoint::open(argv[1]), at::kBFloat16);
  const kvc::Json ids = kvc::Json::parse(std::ifstream(argv[2]));
  const auto turned = [&](int prompt) {
    const at::Tensor numbers = at::tensor(ids[prompt].get<std::vector<std::int64_t>>(), at::kLong);
    return kvc::turned_embeddings(
        kvc::embed(decoder.config(), decoder.weights(), numbers, decoder.dtype()));
  };
  const at::Tensor donor = turned(0), target = turned(1);
  const at::Tensor largest = largest_cosines(target, donor);
  std::vector<Search> searches{{kvc::TokenSearch::kExact}};
  if (kvc::has_faiss()) {
    searches.push_back({kvc::TokenSearch::kFaissLsh});
    searches.push_back({kvc::TokenSearch::kFaissIvf});
  }
  const int rounds = argc > 3 ? std::atoi(argv[3]) : 3;
  for (int round = -1; round < rounds; ++round) {  // the first one warms up
    for (Search& search : searches) {
      const auto start = std::chrono::steady_clock::now();
      const kvc::TokenMatch found = match(search.kind, target, donor);
      const std::chrono::duration<double> taken = std::chrono::steady_clock::now() - start;
      search.recall = recall_of(found.index, target, donor, largest);
      if (round >= 0) {
        search.seconds.push_back(taken.count());
      }
    }
  }
  kvc::Json report;
  for (Search& search : searches) {
    std::sort(search.seconds.begin(), search.seconds.end());
    report[to_string(search.kind)] = {{"seconds", search.seconds[search.seconds.size() / 2]},
                                      {"recall", search.recall}};
  }
  fmt::print("{}\n", report.dump());
  return 0;
}
