// Fetch on demand in fp16.
#include "pairs/fetch_tensor.cuh"

namespace millisecond {

cudaError_t fetch_half(const PairLayout& layout, const FetchProducts& p, After after, const AddProducts& sums,
                       cudaStream_t stream) {
  return launch_tensor_columns<__half>(layout, p, after, sums, stream);
}

}  // namespace millisecond
