#include "runtime/kv_buffer.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <functional>
#include <numeric>
#include <utility>

#include "core/error.h"

namespace kvc {
namespace {

std::size_t round_up(std::size_t value, std::size_t multiple) {
  return (value + multiple - 1) / multiple * multiple;
}

std::size_t system_page() {
  static const auto page = static_cast<std::size_t>(::sysconf(_SC_PAGESIZE));
  return page;
}

}  // namespace

KvAllocator::KvAllocator(std::int64_t page_tokens) : page_tokens_(page_tokens) {
  KVC_CHECK(page_tokens >= 1, "KV cache: pages of {} tokens; pass at least 1", page_tokens);
}

void KvAllocator::change(std::int64_t bytes) {
  allocated_ += bytes;
  peak_ = std::max(peak_, allocated_);
}

KvBuffer::KvBuffer(std::shared_ptr<KvAllocator> allocator, std::vector<std::int64_t> row_shape,
                   at::ScalarType dtype, std::int64_t max_rows)
    : allocator_(std::move(allocator)), row_shape_(std::move(row_shape)), dtype_(dtype) {
  const auto elements =
      std::accumulate(row_shape_.begin(), row_shape_.end(), std::int64_t{1}, std::multiplies<>());
  row_bytes_ = elements * static_cast<std::int64_t>(c10::elementSize(dtype));
  const auto page = allocator_->page_tokens();
  max_rows_ = (max_rows + page - 1) / page * page;
  reserved_bytes_ = round_up(static_cast<std::size_t>(max_rows_ * row_bytes_), system_page());
  void* base = ::mmap(nullptr, reserved_bytes_, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  KVC_CHECK(base != MAP_FAILED, "KV cache: cannot reserve {} bytes of address space: {}",
            reserved_bytes_, std::strerror(errno));
  base_ = static_cast<std::byte*>(base);
}

KvBuffer::~KvBuffer() { release(); }

void KvBuffer::release() {
  if (base_ == nullptr) {
    return;
  }
  ::munmap(base_, reserved_bytes_);
  allocator_->change(-committed_bytes());
  base_ = nullptr;
}

KvBuffer::KvBuffer(KvBuffer&& other) noexcept
    : allocator_(std::move(other.allocator_)),
      row_shape_(std::move(other.row_shape_)),
      dtype_(other.dtype_),
      row_bytes_(other.row_bytes_),
      max_rows_(other.max_rows_),
      num_rows_(other.num_rows_),
      committed_rows_(other.committed_rows_),
      reserved_bytes_(other.reserved_bytes_),
      base_(std::exchange(other.base_, nullptr)) {}

KvBuffer& KvBuffer::operator=(KvBuffer&& other) noexcept {
  if (this != &other) {
    release();
    allocator_ = std::move(other.allocator_);
    row_shape_ = std::move(other.row_shape_);
    dtype_ = other.dtype_;
    row_bytes_ = other.row_bytes_;
    max_rows_ = other.max_rows_;
    num_rows_ = other.num_rows_;
    committed_rows_ = other.committed_rows_;
    reserved_bytes_ = other.reserved_bytes_;
    base_ = std::exchange(other.base_, nullptr);
  }
  return *this;
}

at::Tensor KvBuffer::view(std::int64_t first, std::int64_t count) const {
  std::vector<std::int64_t> shape{count};
  shape.insert(shape.end(), row_shape_.begin(), row_shape_.end());
  return at::from_blob(base_ + first * row_bytes_, shape, at::TensorOptions().dtype(dtype_));
}

at::Tensor KvBuffer::rows() const { return view(0, num_rows_); }

void KvBuffer::append(const at::Tensor& rows) {
  const std::int64_t first = num_rows_, count = rows.size(0);
  if (count == 0) {
    return;
  }
  resize(first + count);
  if (rows.scalar_type() == dtype_ && rows.is_contiguous()) {
    KVC_CHECK(static_cast<std::int64_t>(rows.nbytes()) == count * row_bytes_,
              "KV cache: rows of {} bytes expected, {} found", row_bytes_, rows.nbytes() / count);
    std::memcpy(base_ + first * row_bytes_, rows.const_data_ptr(), rows.nbytes());
  } else {
    view(first, count).copy_(rows);
  }
}

void KvBuffer::erase(std::int64_t first, std::int64_t count) {
  KVC_CHECK(first >= 0 && count >= 0 && first + count <= num_rows_,
            "KV cache: rows {} to {} of {} cannot be removed", first, first + count, num_rows_);
  const std::int64_t behind = num_rows_ - first - count;
  std::memmove(base_ + first * row_bytes_, base_ + (first + count) * row_bytes_,
               static_cast<std::size_t>(behind * row_bytes_));
  resize(num_rows_ - count);
}

void KvBuffer::resize(std::int64_t rows) {
  KVC_CHECK(rows <= max_rows_, "KV cache: a sequence of more than {} tokens", max_rows_);
  const auto page = allocator_->page_tokens();
  const std::int64_t committed = (rows + page - 1) / page * page;
  const auto bytes_of = [this](std::int64_t count) {
    return round_up(static_cast<std::size_t>(count * row_bytes_), system_page());
  };
  const std::size_t before = bytes_of(committed_rows_), after = bytes_of(committed);
  if (after > before) {
    KVC_CHECK(::mprotect(base_ + before, after - before, PROT_READ | PROT_WRITE) == 0,
              "KV cache: cannot commit {} more bytes: {}", after - before, std::strerror(errno));
  } else if (after < before) {
    ::madvise(base_ + after, before - after, MADV_DONTNEED);
    ::mprotect(base_ + after, before - after, PROT_NONE);
  }
  allocator_->change((committed - committed_rows_) * row_bytes_);
  committed_rows_ = committed;
  num_rows_ = rows;
}

}  // namespace kvc
