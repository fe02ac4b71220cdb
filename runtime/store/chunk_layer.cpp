#include "runtime/store/chunk_layer.h"

namespace kvc {

ChunkLayer chunk_layer(const KvPlan& plan, const StoreOptions& options) {
  const RowFormat landmark{.shape = {plan.num_kv_heads, plan.head_dim}, .dtype = options.dtype};
  const RowFormat chunk{.shape = {plan.num_kv_heads}, .dtype = at::kInt};
  return {.landmarks = {options.pool, landmark},
          .outliers = exact_store(plan, options),
          .outlier_chunks = {options.pool, chunk}};
}

}  // namespace kvc
