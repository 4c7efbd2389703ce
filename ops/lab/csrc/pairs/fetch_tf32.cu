// Fetch on demand in tf32.
#include "pairs/fetch_tensor.cuh"

namespace millisecond {

cudaError_t fetch_tf32(const PairLayout& layout, const FetchProducts& p, After after, const AddProducts& sums,
                       cudaStream_t stream) {
  return launch_tensor_columns<float>(layout, p, after, sums, stream);
}

}  // namespace millisecond
