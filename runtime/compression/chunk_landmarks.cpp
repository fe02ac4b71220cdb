#include "runtime/compression/chunk_landmarks.h"

#include <algorithm>

namespace kvc {
namespace {

constexpr std::int64_t kSliceTokens = 1024;  // bounds the float32 copy of keys

// One layer's pending rows first .. first + count - 1, behind `latents` others.
class LayerChunks {
 public:
  LayerChunks(const SelectiveReconstruction& selective, const KeyValueStore& pending,
              std::int64_t first, std::int64_t count, std::int64_t latents)
      : tokens_(selective.chunk_tokens),
        pending_(pending),
        in_last_(latents % tokens_),
        lead_(in_last_ > 0 ? std::min(count, tokens_ - in_last_) : 0),
        first_(first + lead_),
        count_(count - lead_),
        first_chunk_(selective.num_chunks(latents)) {}

  NewChunks find(const RowStore& landmarks, std::int64_t outliers) {
    NewChunks chunks;
    if (lead_ > 0) {
      continue_last(landmarks);
      chunks.continues_last = true;
    }
    const std::int64_t slice = std::max<std::int64_t>(1, kSliceTokens / tokens_) * tokens_;
    for (std::int64_t done = 0; done < count_; done += slice) {
      add(pending_.key.rows(first_ + done, std::min(slice, count_ - done), at::kFloat));
    }
    chunks.landmarks = at::cat(landmarks_);
    if (outliers > 0) {
      const at::Tensor least = at::cat(least_cosines_);  // [whole chunks, num_kv_heads]
      const at::Tensor order = at::argsort(least, /*stable=*/true, 0).narrow(0, 0, outliers);
      const at::Tensor chosen = std::get<0>(order.sort(0));
      chunks.key = rows_of(pending_.key, chosen);
      chunks.value = rows_of(pending_.value, chosen);
      chunks.chunks = chosen + first_chunk_;
    }
    return chunks;
  }

 private:
  // Tokens that fill up the last landmark.
  void continue_last(const RowStore& landmarks) {
    const at::Tensor last = landmarks.rows(landmarks.num_rows() - 1, 1, at::kFloat);
    const at::Tensor keys = pending_.key.rows(first_ - lead_, lead_, at::kFloat);
    const auto before = static_cast<double>(in_last_), added = static_cast<double>(lead_);
    landmarks_.push_back((last * before + keys.sum(0, /*keepdim=*/true)) / (before + added));
  }

  // keys [n, num_kv_heads, head_dim], from the beginning of a chunk on.
  void add(const at::Tensor& keys) {
    const std::int64_t whole = keys.size(0) / tokens_;
    const at::Tensor of_chunks = keys.narrow(0, 0, whole * tokens_).unflatten(0, {whole, tokens_});
    const at::Tensor means = of_chunks.mean(1);
    landmarks_.push_back(means);
    least_cosines_.push_back(
        at::cosine_similarity(of_chunks, means.unsqueeze(1), /*dim=*/-1).amin(1));
    if (whole * tokens_ < keys.size(0)) {
      landmarks_.push_back(keys.slice(0, whole * tokens_).mean(0, /*keepdim=*/true));
    }
  }

  // Tokens of every head's chunks [outliers, num_kv_heads].
  at::Tensor rows_of(const RowStore& rows, const at::Tensor& chosen) const {
    const std::int64_t whole = count_ / tokens_;
    const at::Tensor all =
        rows.rows(first_, whole * tokens_, rows.dtype()).unflatten(0, {whole, tokens_});
    std::vector<at::Tensor> heads;
    for (std::int64_t head = 0; head < all.size(2); ++head) {
      heads.push_back(all.select(2, head).index_select(0, chosen.select(1, head)));
    }
    return at::stack(heads, 2).flatten(0, 1);
  }

  std::int64_t tokens_;  // of a chunk
  const KeyValueStore& pending_;
  std::int64_t in_last_, lead_;  // tokens of the last chunk: that are there, and that join it
  std::int64_t first_, count_, first_chunk_;
  std::vector<at::Tensor> landmarks_, least_cosines_;
};

}  // namespace

std::vector<NewChunks> chunks_of(const SelectiveReconstruction& selective, const LatentStore& store,
                                 std::int64_t first, std::int64_t count) {
  const GroupTokens tokens = store.tokens();
  const std::int64_t outliers = selective.new_outliers(tokens.merged, tokens.outliers, count);
  std::vector<NewChunks> chunks;
  for (int index = 0; index < store.num_chunk_layers(); ++index) {
    LayerChunks layer(selective, store.pending(index), first, count, tokens.merged);
    chunks.push_back(layer.find(store.chunks(index).landmarks, outliers));
  }
  return chunks;
}

void append_chunks(const std::vector<NewChunks>& chunks, LatentStore& store) {
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    ChunkLayer& layer = store.chunks(static_cast<int>(i));
    if (chunks[i].continues_last) {
      layer.landmarks.truncate(layer.landmarks.num_rows() - 1);
    }
    layer.landmarks.append(chunks[i].landmarks);
    if (chunks[i].key.defined()) {
      layer.outliers.append(chunks[i].key, chunks[i].value);
      layer.outlier_chunks.append(chunks[i].chunks);
    }
  }
}

}  // namespace kvc
