// The codes of PagedCodes on a GPU: which kernels store, read and attend to them. Does not use torch, and launches nothing
// itself: what it makes runs on any queue of device_queue.h, in GPU memory or in the CPU emulator of the tests.
// Factors lie in an image (device_image.h), which the engine copies to the GPU.
#pragma once

#include <cstdint>
#include <vector>

#include "runtime/ops/device_image.h"
#include "runtime/ops/device_program.h"
#include "runtime/ops/paged_codes.h"

namespace kvc {

class DeviceCodes {
 public:
  // Where an engine has what an op reads. Pointers to GPU memory.
  struct Memory {
    const std::uint8_t* image = nullptr;         // a copy of image(), 16-byte aligned
    const float *cos = nullptr, *sin = nullptr;  // as Shape::rope
    DevicePages pages{};
    DeviceElement element =
        DeviceElement::kBFloat16;  // or float16: of queries, keys, values and outputs
  };
  // Queries of one token for every sequence, as PagedCodes::Sequences and OpenTiles, in GPU memory.
  struct Sequences {
    const std::int32_t* pages = nullptr;
    std::int64_t stride = 0;
    int count = 0;
    const std::int32_t* tokens = nullptr;
    int most_tokens = 0;  // of a sequence
    const void *open_keys = nullptr, *open_values = nullptr;
    const std::int32_t* open_numbers = nullptr;
    int exact_tiles = 0;  // OpenTiles::each, 0 without open_numbers
    int num_open_tiles = 0;
  };

  DeviceCodes(const PagedCodes::Shape& shape, const std::vector<PagedBlock>& blocks);

  const PagedCodes::Shape& shape() const { return shape_; }  // without angles
  // Nothing else is asked for where it has a refusal.
  const DeviceImage& image() const { return image_; }

  // As PagedCodes::store(), read() and attend(). layers: [num_layers] keys and values. read: page_numbers, keys and values
  // of one sequence; keys, values [count, num_kv_heads, head_dim]. attend: query with any strides and neighbouring
  // channels; output [sequences, num_heads, head_dim]; multiprocessors: of the GPU.
  DeviceProgram store(const Memory& memory, const std::int64_t* slots,
                      const std::int64_t* positions, int count, const std::vector<EngineRows>& keys,
                      const std::vector<EngineRows>& values, DeviceScratch& scratch) const;
  DeviceProgram read(const Memory& memory, const std::int32_t* page_numbers, int first, int count,
                     std::int64_t layer, void* keys, void* values) const;
  DeviceProgram attend(const Memory& memory, const Sequences& sequences, std::int64_t layer,
                       const void* query, void* output, int multiprocessors,
                       DeviceScratch& scratch) const;

 private:
  PagedBlocks described(const Memory& memory) const;
  template <class Attention>
  void set_shape(const Memory& memory, const Sequences& sequences, Attention& attention) const;
  // Sums of values' levels of every head, in parts.
  DevicePartials add_sums(const Memory& memory, const Sequences& sequences,
                          const DeviceImage::Layer& layer, const void* query,
                          const PlacePages& places, int multiprocessors, DeviceScratch& scratch,
                          DeviceProgram& program) const;

  PagedCodes::Shape shape_;
  std::int64_t num_pairs_;
  DeviceImage image_;
};

}  // namespace kvc
