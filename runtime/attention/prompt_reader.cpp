#include "runtime/attention/prompt_reader.h"

#include <algorithm>
#include <limits>
#include <utility>

#include "runtime/attention/cached_attention.h"

namespace kvc {
namespace {

// Grows a piece; its tensors follow when it is complete.
struct PieceBuilder {
  std::vector<std::size_t> sequences;
  std::vector<std::int64_t> ids, positions, lengths;

  std::int64_t size() const { return static_cast<std::int64_t>(ids.size()); }

  void add(std::size_t sequence, const std::int64_t* first_id, std::int64_t count,
           std::int64_t first_position) {
    sequences.push_back(sequence);
    lengths.push_back(count);
    ids.insert(ids.end(), first_id, first_id + count);
    for (std::int64_t i = 0; i < count; ++i) {
      positions.push_back(first_position + i);
    }
  }

  PromptPiece finish() {
    PromptPiece piece{.sequences = std::exchange(sequences, {}),
                      .batch = {.ids = at::tensor(ids, at::kLong),
                                .positions = at::tensor(positions, at::kLong),
                                .lengths = std::exchange(lengths, {})}};
    ids.clear();
    positions.clear();
    return piece;
  }
};

}  // namespace

std::vector<PromptPiece> pieces_of(const std::vector<std::vector<std::int64_t>>& ids,
                                   const std::vector<std::int64_t>& num_tokens,
                                   const std::vector<bool>& whole, std::int64_t most) {
  if (most == 0) {
    most = std::numeric_limits<std::int64_t>::max();
  }
  std::vector<PromptPiece> pieces;
  PieceBuilder builder;
  for (std::size_t sequence = 0; sequence < ids.size(); ++sequence) {
    const auto length = static_cast<std::int64_t>(ids[sequence].size());
    for (std::int64_t first = 0; first < length;) {
      const std::int64_t room = most - builder.size();
      const std::int64_t count = std::min(length - first, whole[sequence] ? length : room);
      if (count > room && builder.size() > 0) {
        pieces.push_back(builder.finish());
      }
      builder.add(sequence, ids[sequence].data() + first, count, num_tokens[sequence] + first);
      first += count;
      if (builder.size() >= most) {
        pieces.push_back(builder.finish());
      }
    }
  }
  if (builder.size() > 0) {
    pieces.push_back(builder.finish());
  }
  return pieces;
}

std::vector<at::Tensor> read_pieces(const SourceContext& context,
                                    const std::vector<KvCache*>& caches,
                                    const std::vector<std::int64_t>& lengths,
                                    const std::vector<PromptPiece>& pieces,
                                    std::vector<PromptCompression>& compressions,
                                    const Stopped& stopped, PartTimes* times) {
  const Decoder& decoder = context.decoder;
  std::vector<PromptKeys> prompts(lengths.begin(), lengths.end());
  std::vector<CachedAttention> attentions;
  std::vector<at::Tensor> hidden_states;
  for (const PromptPiece& piece : pieces) {
    std::vector<KvCache*> own_caches;
    std::vector<PromptKeys*> own_prompts;
    for (const std::size_t sequence : piece.sequences) {
      own_caches.push_back(caches[sequence]);
      own_prompts.push_back(&prompts[sequence]);
    }
    attentions.emplace_back(context, std::move(own_caches), std::move(own_prompts), times);
    hidden_states.push_back(
        embed(decoder.config(), decoder.weights(), piece.batch.ids, decoder.dtype()));
  }
  for (int layer = 0; layer < decoder.config().num_layers; ++layer) {
    for (std::size_t i = 0; i < pieces.size(); ++i) {
      if (stopped && stopped()) {
        throw Interrupted();
      }
      hidden_states[i] = run_layer(decoder.config(), decoder.layer(layer), layer, hidden_states[i],
                                   pieces[i].batch, attentions[i]);
    }
    const PartScope scope(times, Part::kCompression, Part::kModel);
    for (PromptCompression& compression : compressions) {
      attentions.back().prompt_read(layer, compression);
    }
  }
  const PartScope scope(times, Part::kCompression, Part::kModel);
  for (PromptCompression& compression : compressions) {
    compression.all_read();
  }
  return hidden_states;
}

}  // namespace kvc
