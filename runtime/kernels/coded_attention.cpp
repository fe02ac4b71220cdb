#include "runtime/kernels/coded_attention.h"

#undef HWY_TARGET_INCLUDE
#define HWY_TARGET_INCLUDE "runtime/kernels/coded_attention.cpp"
#include <hwy/foreach_target.h>  // IWYU pragma: keep

#include <hwy/highway.h>

#include "runtime/kernels/attend_tiles-inl.h"
#include "runtime/kernels/coded_softmax-inl.h"
#include "runtime/kernels/cpu_features.h"
#include "runtime/kernels/pair_keys-inl.h"
#include "runtime/kernels/rebuild_keys-inl.h"
#include "runtime/kernels/rotated_keys-inl.h"
#include "runtime/kernels/vnni_keys-inl.h"
#include "runtime/kernels/vnni_rotated-inl.h"
#include "runtime/kernels/vnni_sums-inl.h"

HWY_BEFORE_NAMESPACE();
namespace kvc::HWY_NAMESPACE {
#if HWY_TARGET == HWY_SCALAR

void attend_codes(const DecodeAttentionParams& params, const CodedSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  coded_attention_partial_reference(params, segment, first, last, partial);
}

#else

template <class Codes, class Keys, class Rotated, class Sums>
void attend_form(const DecodeAttentionParams& params, const CodedSegment& segment,
                 std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
  switch (segment.rows[0].form()) {
    case KeyForm::kBases:
      return attend_tiles<Codes, Keys, Sums>(params, segment, first, last, partial);
    case KeyForm::kPairs:
      return attend_tiles<Codes, PairKeys<Codes>, Sums>(params, segment, first, last, partial);
    case KeyForm::kRotated:
      return attend_tiles<Codes, Rotated, Sums>(params, segment, first, last, partial);
  }
}

void attend_codes(const DecodeAttentionParams& params, const CodedSegment& segment,
                  std::int64_t first, std::int64_t last, const AttentionPartial& partial) {
#if KVC_HAS_VNNI_CODES
  if (has_avx512_vnni()) {
    return attend_form<VnniCodes, VnniKeys, VnniRotatedKeys, VnniSums>(params, segment, first, last,
                                                                       partial);
  }
#endif
  attend_form<TileCodes, TileKeys, RotatedKeys, CodeSums>(params, segment, first, last, partial);
}

#endif  // HWY_TARGET == HWY_SCALAR

}  // namespace kvc::HWY_NAMESPACE
HWY_AFTER_NAMESPACE();

#if HWY_ONCE
namespace kvc {

HWY_EXPORT(attend_codes);

void coded_attention_partial(const DecodeAttentionParams& params, const CodedSegment& segment,
                             std::int64_t first, std::int64_t last,
                             const AttentionPartial& partial) {
  HWY_DYNAMIC_DISPATCH(attend_codes)(params, segment, first, last, partial);
}

}  // namespace kvc
#endif  // HWY_ONCE
