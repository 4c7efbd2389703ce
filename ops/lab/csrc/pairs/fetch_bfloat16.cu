// Fetch on demand in bf16.
#include "pairs/fetch_tensor.cuh"

namespace millisecond {

cudaError_t fetch_bfloat16(const PairLayout& layout, const FetchProducts& p, After after, const AddProducts& sums,
                           cudaStream_t stream) {
  return launch_tensor_columns<__nv_bfloat16>(layout, p, after, sums, stream);
}

}  // namespace millisecond
