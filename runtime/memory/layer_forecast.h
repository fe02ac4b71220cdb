// Forecasts of layers that hold the same tokens, one class for each source of keys and values: the counts that its store goes
// through, and the plan's formula for their bytes.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "core/token_policy.h"
#include "runtime/store/kv_cache.h"
#include "runtime/store/token_counts.h"

namespace kvc {

// Which tokens merge depends on the text: while a group is compressed, its merged tokens are taken to be
// its share of all, or (for a bound) none.
enum class MergeSpread { kEven, kNone };

struct ForecastSettings {
  const KvPlan& plan;
  KvDtype dtype;
  std::int64_t page_tokens;
  MergeSpread spread = MergeSpread::kEven;
  TokenPolicy policy{};
  std::optional<KvDtype> plain_dtype{};  // of plain layers, where it is another than the others'
};

// Bytes of a cache on the way, and the most of them.
struct PassBytes {
  explicit PassBytes(std::int64_t bytes) : now(bytes), most(bytes) {}
  // So many bytes more for a while, and then.
  void change(std::int64_t added, std::int64_t then) {
    most = std::max(most, now + added);
    now += then;
    most = std::max(most, now);
  }

  std::int64_t now, most;
};

class LayerForecast {
 public:
  LayerForecast(const ForecastSettings& settings, std::vector<int> layers)
      : settings_(settings), layers_(std::move(layers)) {}
  LayerForecast(const ForecastSettings& settings, int first_layer, int num_layers);
  virtual ~LayerForecast() = default;

  const std::vector<int>& layers() const { return layers_; }
  virtual std::int64_t rows() const = 0;  // tokens of each layer
  virtual std::int64_t bytes() const = 0;
  // How many can be appended before any are due to be compressed.
  virtual std::int64_t tokens_until_due() const { return kNever; }

  // For a prompt at whose end the sequence has so many tokens, `count` are read by `layer`; after the last layer of these,
  // tokens leave and the others are compressed.
  virtual void read(int layer, std::int64_t count, std::int64_t prompt_end, PassBytes& pass);
  // `count` generated tokens are stored; then the token policy lets some leave; then those due are compressed.
  void append(std::int64_t count, PassBytes& pass);
  void leave(std::int64_t prompt_end, PassBytes& pass);  // 0: after generated tokens
  virtual void compress(std::int64_t /*prompt_tokens*/, PassBytes& /*pass*/) {}

 protected:
  static constexpr int kAllLayers = -1;
  const KvPlan& plan() const { return settings_.plan; }
  const TokenPolicy& policy() const { return settings_.policy; }
  bool is_last(int layer) const { return layer == kAllLayers || layer == layers_.back(); }
  // A layer has read so many tokens of a prompt, or all layers have generated ones.
  virtual void store(int layer, std::int64_t count) = 0;
  virtual void remove(std::int64_t count, bool is_step) = 0;
  template <typename Change>
  void follow(PassBytes& pass, const Change& change) const {
    const std::int64_t before = bytes();
    change();
    pass.change(0, bytes() - before);
  }

  ForecastSettings settings_;
  std::vector<int> layers_;
  KeptBudget budget_;
  std::int64_t slots_ = 0;  // residual slots in use
};

// Plain layers that keep the same tokens; where no policy drops any, one layer, up to the last that reads its prompts.
class PlainForecast : public LayerForecast {
 public:
  PlainForecast(const ForecastSettings& settings, const SharingLayers& sharing,
                const KvCache* cache);

  std::int64_t rows() const override { return stored_.front().rows; }
  std::int64_t bytes() const override;
  std::int64_t tokens_until_due() const override;
  void compress(std::int64_t prompt_tokens, PassBytes& pass) override;

 private:
  void store(int layer, std::int64_t count) override;
  void remove(std::int64_t count, bool is_step) override;
  std::int64_t bytes_of(KeptTokens tokens) const;
  bool codes_by_row() const { return policy().is_running() && stored_.front().has_left; }

  KvDtype dtype_;
  bool has_codes_;
  std::vector<int> storage_;
  std::vector<KeptTokens> stored_;  // of each of them
  std::int64_t pruned_ = 0;         // rows whose keys have lost channels
};

// Layers that are coded together.
class CodedForecast : public LayerForecast {
 public:
  CodedForecast(const ForecastSettings& settings, const CodedLayers& layers, const KvCache* cache);

  std::int64_t rows() const override { return tokens_.rows; }
  std::int64_t bytes() const override { return bytes_of(tokens_); }
  std::int64_t tokens_until_due() const override;
  void read(int layer, std::int64_t count, std::int64_t prompt_end, PassBytes& pass) override;
  void compress(std::int64_t prompt_tokens, PassBytes& pass) override;

 private:
  void store(int layer, std::int64_t count) override { tokens_.rows += is_last(layer) ? count : 0; }
  void remove(std::int64_t count, bool is_step) override;
  std::int64_t bytes_of(const KeptCodedTokens& tokens) const;

  KeptCodedTokens tokens_;
};

// Two paired layers. How many tokens are retained beside the merged ones follows the text: as many as may be.
class PairForecast : public LayerForecast {
 public:
  PairForecast(const ForecastSettings& settings, int first_layer, const KvCache* cache);

  std::int64_t rows() const override { return tokens_.merged + tokens_.exact; }
  std::int64_t bytes() const override;
  void compress(std::int64_t prompt_tokens, PassBytes& pass) override;

 private:
  void store(int layer, std::int64_t count) override {
    tokens_.exact += is_last(layer) ? count : 0;
  }
  void remove(std::int64_t, bool) override {}  // policies keep all

  PairTokens tokens_;
};

}  // namespace kvc
