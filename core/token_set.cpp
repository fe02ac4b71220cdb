#include "core/token_set.h"

#include <algorithm>
#include <span>

#include "core/error.h"
#include "core/hash.h"
#include "core/hdf5.h"
#include "core/output.h"
#include "core/provenance.h"

namespace kvc {
namespace {

std::vector<std::int64_t> lengths_of(const TokenSet& tokens) {
  std::vector<std::int64_t> lengths;
  for (const auto& sequence : tokens.sequences) {
    lengths.push_back(static_cast<std::int64_t>(sequence.size()));
  }
  return lengths;
}

std::vector<std::int64_t> ids_of(const TokenSet& tokens) {
  std::vector<std::int64_t> ids;
  for (const auto& sequence : tokens.sequences) {
    ids.insert(ids.end(), sequence.begin(), sequence.end());
  }
  return ids;
}

Provenance provenance_of(const TokenSet& tokens) {
  Provenance provenance;
  provenance.kind = "tokens";
  provenance.checkpoint_hash = tokens.tokenizer_hash;
  provenance.tokens_hash = tokens.hash();
  provenance.options = Json{{"split", tokens.split}, {"source_hashes", tokens.source_hashes}};
  if (!tokens.self.is_null()) {
    provenance.options["self"] = tokens.self;
  }
  return provenance;
}

void cut_sequences(TokenSet& tokens, const std::vector<std::int64_t>& ids,
                   const std::vector<std::int64_t>& lengths, const std::string& subject) {
  auto next = ids.begin();
  for (std::int64_t length : lengths) {
    KVC_CHECK(length > 0 && length <= ids.end() - next,
              "{}: sequence lengths do not add up to the number of ids", subject);
    tokens.sequences.emplace_back(next, next + length);
    next += length;
  }
  KVC_CHECK(next == ids.end(), "{}: sequence lengths do not add up to the number of ids", subject);
}

}  // namespace

std::vector<std::size_t> spread_sequences(const TokenSet& tokens, std::size_t wanted) {
  const std::size_t total = tokens.sequences.size();
  const bool alternate = !tokens.self.is_null() && total > 1;
  wanted = std::min(std::max<std::size_t>(wanted, alternate ? 2 : 1), total);
  std::vector<std::size_t> places;
  for (std::size_t i = 0; i < wanted; ++i) {
    places.push_back(i * total / wanted);
  }
  const bool same = std::all_of(places.begin(), places.end(),
                                [&](std::size_t place) { return place % 2 == places[0] % 2; });
  for (std::size_t i = 1; alternate && same && i < wanted; i += 2) {
    ++places[i];
  }
  return places;
}

std::int64_t TokenSet::num_tokens() const {
  std::int64_t total = 0;
  for (const auto& sequence : sequences) {
    total += static_cast<std::int64_t>(sequence.size());
  }
  return total;
}

std::string TokenSet::hash() const {
  Sha256 sha;
  Json origin{{"tokenizer", tokenizer_hash}, {"sources", source_hashes}, {"split", split}};
  if (!self.is_null()) {
    origin["self"] = self;
  }
  sha.update(origin.dump());
  const std::vector<std::int64_t> lengths = lengths_of(*this);
  sha.update(std::as_bytes(std::span(lengths)));
  for (const auto& sequence : sequences) {
    sha.update(std::as_bytes(std::span(sequence)));
  }
  return sha.hex();
}

void write_token_set(const std::filesystem::path& path, const TokenSet& tokens, bool force) {
  OutputFile output(path, force);
  Hdf5Writer file(output.path());
  write_provenance(file, provenance_of(tokens));
  const std::vector<std::int64_t> lengths = lengths_of(tokens), ids = ids_of(tokens);
  file.dataset("/lengths", lengths, {static_cast<std::int64_t>(lengths.size())}, {"sequence"});
  file.dataset("/ids", ids, {static_cast<std::int64_t>(ids.size())}, {"token"});
  file.close();
  output.commit();
}

TokenSet read_token_set(const std::filesystem::path& path, std::int64_t vocab_size) {
  const Hdf5Reader file(path);
  const Provenance provenance = read_provenance(file);
  const std::string subject = path.string();
  KVC_CHECK(provenance.kind == "tokens", "{}: holds '{}', expected 'tokens'", subject,
            provenance.kind);
  TokenSet tokens;
  tokens.tokenizer_hash = provenance.checkpoint_hash;
  try {
    tokens.split = provenance.options.at("split").get<std::string>();
    tokens.source_hashes = provenance.options.at("source_hashes").get<std::vector<std::string>>();
    tokens.self = provenance.options.value("self", Json(nullptr));
  } catch (const Json::exception&) {
    fail("{}:/options: expected 'split' and 'source_hashes'", subject);
  }
  const auto ids = file.ints("/ids", file.shape("/ids"));
  cut_sequences(tokens, ids, file.ints("/lengths", file.shape("/lengths")), subject);
  for (std::int64_t id : ids) {
    KVC_CHECK(
        id >= 0 && (vocab_size == 0 || id < vocab_size),
        "{}: token id {} is outside the vocabulary of {}; tokenize the text for this checkpoint",
        subject, id, vocab_size);
  }
  KVC_CHECK(tokens.hash() == provenance.tokens_hash, "{}: contents and hash differ; damaged file",
            subject);
  return tokens;
}

}  // namespace kvc
